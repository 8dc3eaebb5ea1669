/* log.h - log lines, to stderr or to the hook set with pen_log_set().
 *
 * Levels by volume: error (the job is harmed), warning (it may be), notice (once per job or event), info (per
 * phase), debug (per message).  Lower case, no '=', exact cause, "%m" for system errors.  The first function that
 * knows a cause logs it; callers that pass it on do not.
 */
#ifndef COMMON_LOG_H
#define COMMON_LOG_H

#include <stddef.h>
#include <stddef.h>
#include <stdint.h>

enum { LOG_ERROR = 0, LOG_WARNING, LOG_NOTICE, LOG_INFO, LOG_DEBUG };

/* Writes "penstock: <text>" (at debug and info with a time stamp) with one write(2), so that lines of two threads
 * do not mix.  Thread: any. */
void log_line(int level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define log_error(...)   log_line(LOG_ERROR, __VA_ARGS__)
#define log_warning(...) log_line(LOG_WARNING, __VA_ARGS__)
#define log_notice(...)  log_line(LOG_NOTICE, __VA_ARGS__)
#define log_info(...)    log_line(LOG_INFO, __VA_ARGS__)
#define log_debug(...)   log_line(LOG_DEBUG, __VA_ARGS__)

/* Level by name ("error".."debug", or "silent"); -2 when unknown. */
int log_level_find(const char *name);
void log_level_set(int level);

/* Format of lines to stderr: text, or one JSON object per line with time, level, role, rank and text.  rank -1:
 * none. */
enum { LOG_TEXT = 0, LOG_JSON };
extern const char *const log_formats[]; /* "text", "json", NULL */
void log_format_set(int format);
void log_format_as(const char *role, int rank); /* role: BORROWED for good */
/* The name of this process in sentences: "server 1", "scheduler"; "this process" if unset. */
void log_own_name(char *text, size_t size);

/* Formats one such object, with its newline.  level < 0: a program's line, with stream ("stdout") instead.  Invalid
 * UTF-8 becomes '?'.  Returns the length; truncates `text` to fit. */
size_t log_json(char *line, size_t size, int level, const char *role, int rank, const char *stream,
                const char *text);

/* True at most once per `key` and minute: for lines that a hostile or broken peer could repeat. */
int log_allowed(uint64_t key);

#endif
