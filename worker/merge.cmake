# The static library: all layers as one object that exports only the functions of penstock.h, so that no name of a
# program collides with ours.
#   cmake -DLD=... -DOBJCOPY=... -DAR=... -DOUT=libpenstock.a -DARCHIVES=a,b -P merge.cmake
string(REPLACE "," ";" archives "${ARCHIVES}")
get_filename_component(object "${OUT}" DIRECTORY)
set(object ${object}/penstock.o)
execute_process(COMMAND ${LD} -r -o ${object} --whole-archive ${archives} COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${OBJCOPY} --localize-hidden ${object} COMMAND_ERROR_IS_FATAL ANY)
file(REMOVE ${OUT})
execute_process(COMMAND ${AR} rcs ${OUT} ${object} COMMAND_ERROR_IS_FATAL ANY)
file(REMOVE ${object})
