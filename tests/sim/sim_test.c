#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>
#include "tests/sim/cluster.h"
int main(int argc, char **argv)
{
    uint64_t from = argc > 1 ? strtoull(argv[1], 0, 10) : 1, n = argc > 2 ? strtoull(argv[2], 0, 10) : 1;
    int bad = 0;
    for (uint64_t s = from; s < from + n; s++) {
        sim_plan p = sim_plan_swarm(s);
        if (getenv("CALM")) p = sim_plan_calm(s, (model_mode)(s % 4));
        p.trace = n == 1;
        if (getenv("CDROP")) p.control.drop = atoi(getenv("CDROP"));
        if (getenv("CREORD")) p.control.reorder = atoi(getenv("CREORD"));
        if (getenv("PLANT")) p.plant = atoi(getenv("PLANT"));
        sim_result r = sim_run(&p);
        char text[600]; sim_plan_describe(&p, text, sizeof text);
        if (r.wrong[0] || !r.in_order || n == 1) {
            bad++;
            printf("%llu: in_order %d ms %llu messages %llu applied %llu: %s | %s\n   %s\n", (unsigned long long)s, r.in_order, (unsigned long long)r.ms, (unsigned long long)r.messages, (unsigned long long)r.applied, r.wrong, r.sentence, text);
        }
    }
    printf("%d bad\n", bad);
}
