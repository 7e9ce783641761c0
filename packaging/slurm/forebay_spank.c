/*
 * A SPANK plugin of Slurm: `srun --forebay=DIR-OR-FILE` runs each task by `forebay run`, with a
 * directory as --backing or a configuration as --config. All else is the command's: the node
 * manager is joined or started as the user, and the step ends when all is on the store. With sbatch
 * and salloc it is for each step of the job. The command takes the place of what Slurm would do next
 * in the task's process: TaskProlog and --task-prolog are not run.
 *
 * gcc -shared -fPIC -O2 -Wall -Wextra -o forebay_spank.so forebay_spank.c
 * plugstack.conf: optional /usr/lib/slurm/forebay_spank.so [path of the command]
 */
#define _GNU_SOURCE
#include <slurm/slurm.h>
#include <slurm/spank.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

SPANK_PLUGIN(forebay, 1)

/* What --forebay names; NULL without the option. */
static char *named;

static int take(int value, const char *argument, int is_remote)
{
    (void)value;
    (void)is_remote;
    if (argument == NULL || argument[0] != '/') {
        slurm_error("--forebay: give the absolute path of a directory or of a configuration");
        return ESPANK_BAD_ARG;
    }
    free(named);
    named = strdup(argument);
    return named == NULL ? ESPANK_ERROR : ESPANK_SUCCESS;
}

static struct spank_option option = {
    "forebay", "PATH",
    "buffer the files of a directory, or as a configuration says (absolute path)", 1, 0, take};

int slurm_spank_init(spank_t spank, int count, char **words)
{
    (void)count;
    (void)words;
    return spank_option_register(spank, &option);
}

/* In the task's process, as the user, before its program. */
int slurm_spank_task_init(spank_t spank, int count, char **words)
{
    const char *command = count > 0 ? words[0] : "forebay";
    char **program = NULL, **environment = NULL;
    struct stat found;
    uint32_t step = 0;
    int length = 0;

    /* The script of a batch job is not buffered: its steps are. */
    if (named == NULL || (spank_get_item(spank, S_JOB_STEPID, &step) == ESPANK_SUCCESS &&
                          step == SLURM_BATCH_SCRIPT))
        return ESPANK_SUCCESS;
    if (spank_get_item(spank, S_JOB_ARGV, &length, &program) != ESPANK_SUCCESS ||
        spank_get_item(spank, S_JOB_ENV, &environment) != ESPANK_SUCCESS) {
        fprintf(stderr, "forebay: Slurm does not say what the task's program is\n");
        _exit(125);
    }
    const char **all = calloc((size_t)length + 6, sizeof *all);
    if (all == NULL)
        _exit(125);
    int at = 0;
    all[at++] = command;
    all[at++] = "run";
    all[at++] = stat(named, &found) == 0 && S_ISDIR(found.st_mode) ? "--backing" : "--config";
    all[at++] = named;
    all[at++] = "--";
    memcpy(all + at, program, (size_t)length * sizeof *all);
    execvpe(command, (char *const *)all, environment);
    fprintf(stderr, "forebay: %s cannot be run: %m; name its path in plugstack.conf\n", command);
    _exit(125);
}
