# The static library: all layers as one object, of which only what penstock.h declares is seen from outside, so that no
# name of a program meets one of ours.
#   cmake -DLD=... -DOBJCOPY=... -DAR=... -DOUT=libpenstock.a -DARCHIVES=a,b -P merge.cmake
string(REPLACE "," ";" archives "${ARCHIVES}")
get_filename_component(object "${OUT}" DIRECTORY)
set(object ${object}/penstock.o)
execute_process(COMMAND ${LD} -r -o ${object} --whole-archive ${archives} COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${OBJCOPY} --localize-hidden ${object} COMMAND_ERROR_IS_FATAL ANY)
file(REMOVE ${OUT})
execute_process(COMMAND ${AR} rcs ${OUT} ${object} COMMAND_ERROR_IS_FATAL ANY)
file(REMOVE ${object})
