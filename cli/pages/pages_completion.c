/* pages_completion.c - the bash completion: tables of words, and one function that finds the cursor's context. */
#include "cli/pages/pages.h"

#include <string.h>

static void write_words_of(FILE *out, const page *p)
{
    fprintf(out, "        '%s') flags='", p->name);
    for (size_t i = 0; i < p->n_flags; i++) {
        if (p->flag[i].name[0] == '\0') continue;
        fprintf(out, "%s ", p->flag[i].name);
    }
    fprintf(out, "help'");
    if (p->verbs != NULL) {
        fprintf(out, " words='");
        for (const command *v = p->verbs; v->name != NULL; v++)
            fprintf(out, "%s%s", v == p->verbs ? "" : " ", v->name);
        fprintf(out, "'");
    }
    fprintf(out, " ;;\n");
}

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

static void write_values_of(FILE *out, const page *p)
{
    for (size_t i = 0; i < p->n_flags; i++) {
        const page_flag *f = &p->flag[i];
        const bool is_path = strstr(f->name, "file") != NULL || strstr(f->name, "config") != NULL ||
                             strcmp(f->name, "out") == 0 ||
                             (f->arg != NULL && strcmp(f->arg, "FILE") == 0);
        const bool is_folder = ends_with(f->name, "dir") || strcmp(f->name, "store") == 0 ||
                               (f->arg != NULL && strcmp(f->arg, "DIR") == 0);
        if (f->name[0] == '\0' || f->arg == NULL) continue;
        fprintf(out, "        '%s --%s'", p->name, f->name);
        if (f->also != 0) fprintf(out, "|'%s -%c'", p->name, f->also);
        fprintf(out, ") ");
        if (f->choices != NULL) {
            fprintf(out, "%s='", f->is_optional ? "switch" : "values");
            for (int c = 0; f->choices[c] != NULL; c++)
                fprintf(out, "%s%s", c > 0 ? " " : "", f->choices[c]);
            fprintf(out, "'");
        } else {
            fprintf(out, "values=%s", is_folder ? "@folder" : is_path ? "@file" : "@none");
        }
        fprintf(out, " ;;\n");
    }
}

/* Bash splits words at '=', so --mode=ps is three words; flags may contain _ too. */
static const char body[] =
    "_penstock() {\n"
    "    local cur=${COMP_WORDS[COMP_CWORD]} command= flag= word flags words values switch i=1\n"
    "    COMPREPLY=()\n"
    "    command=${COMP_WORDS[1]}\n"
    "    if ((COMP_CWORD == 1)); then\n"
    "        COMPREPLY=($(compgen -W \"$_penstock_commands --help --version\" -- \"$cur\"))\n"
    "        return\n"
    "    fi\n"
    "    _penstock_words \"$command\"\n"
    "    if [[ $words && $cur != -* && $COMP_CWORD == 2 ]]; then\n"
    "        COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
    "        return\n"
    "    fi\n"
    "    if [[ $words && \" $words \" == *\" ${COMP_WORDS[2]} \"* ]]; then\n"
    "        command=\"$command ${COMP_WORDS[2]}\" i=2\n"
    "        _penstock_words \"$command\"\n"
    "    fi\n"
    "    while ((++i < COMP_CWORD)); do\n"
    "        word=${COMP_WORDS[i]}\n"
    "        if [[ $word == = ]]; then continue; fi\n"
    "        if [[ $flag ]]; then flag=; continue; fi\n"
    "        if [[ $word == -- || $word != -* ]]; then\n"
    "            [[ $command == run ]] && _penstock_program $((i + ($(printf %d \"'$word\") == "
    "45)))\n"
    "            [[ $command == run ]] && return\n"
    "            continue\n"
    "        fi\n"
    "        [[ $word == --* ]] && word=--${word#--} && word=${word//_/-}\n"
    "        values= switch=\n"
    "        _penstock_values \"$command $word\"\n"
    "        [[ $switch && ${COMP_WORDS[i + 1]} == = ]] && values=$switch\n"
    "        [[ $values ]] && flag=$word\n"
    "    done\n"
    "    if [[ $cur == = ]]; then cur=; fi\n"
    "    if [[ $flag ]]; then\n"
    "        case $values in\n"
    "        @none) ;;\n"
    "        @file) compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -f -- \"$cur\")) ;;\n"
    "        @folder) compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -d -- \"$cur\")) ;;\n"
    "        *) COMPREPLY=($(compgen -W \"$values\" -- \"$cur\")) ;;\n"
    "        esac\n"
    "        return\n"
    "    fi\n"
    "    if [[ $cur == -* ]]; then\n"
    "        word=$(printf -- '--%s ' $flags)\n"
    "        [[ $cur == --*_* ]] && word=${word//-/_} && word=${word//__/--}\n"
    "        COMPREPLY=($(compgen -W \"$word\" -- \"$cur\"))\n"
    "    elif [[ $command == run ]]; then\n"
    "        _penstock_program \"$COMP_CWORD\"\n"
    "    else\n"
    "        compopt -o filenames 2>/dev/null\n"
    "        COMPREPLY=($(compgen -f -- \"$cur\"))\n"
    "    fi\n"
    "}\n"
    "\n"
    "# The program of `penstock run`, and its arguments: by its own completion where "
    "bash-completion is loaded.\n"
    "_penstock_program() {\n"
    "    if declare -F _command_offset >/dev/null; then\n"
    "        _command_offset \"$1\"\n"
    "    elif ((COMP_CWORD == $1)); then\n"
    "        COMPREPLY=($(compgen -c -f -- \"${COMP_WORDS[COMP_CWORD]}\"))\n"
    "    else\n"
    "        compopt -o filenames 2>/dev/null\n"
    "        COMPREPLY=($(compgen -f -- \"${COMP_WORDS[COMP_CWORD]}\"))\n"
    "    fi\n"
    "}\n"
    "\n"
    "complete -F _penstock penstock\n";

void pages_write_completion(const page *p, size_t n, FILE *out)
{
    fprintf(
        out,
        "# penstock: completion for bash, written by `penstock docs completion`; for zsh after  "
        "autoload -U bashcompinit && bashcompinit\n_penstock_commands='");
    for (size_t i = 0; i < n; i++)
        if (strchr(p[i].name, ' ') == NULL) fprintf(out, "%s%s", i > 0 ? " " : "", p[i].name);
    fprintf(out, "'\n\n_penstock_words() {\n    flags=help words=\n    case $1 in\n");
    for (size_t i = 0; i < n; i++) write_words_of(out, &p[i]);
    fprintf(out, "    esac\n}\n\n_penstock_values() {\n    case $1 in\n");
    for (size_t i = 0; i < n; i++) write_values_of(out, &p[i]);
    fprintf(out, "    esac\n}\n\n%s", body);
}
