/* How the program drives the engine, a library opened at run time: C only, no torch type, no exception crosses.
 *
 * The program does everything that needs no tensor (recipe, model folder, data files, output folder, memory plan); what it
 * hands over is checked and resolved. The engine computes, reports on stderr and stdout, and writes the run folder. */
#ifndef PHALANX_BIND_ENGINE_C_API_H_
#define PHALANX_BIND_ENGINE_C_API_H_

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How a command ended; the program exits with it. */
enum PhalanxExit {
  kPhalanxOk = 0,
  kPhalanxFailed = 1,   /* an error while running */
  kPhalanxBadInput = 2, /* the recipe, model, data or command line is not acceptable */
  kPhalanxInterrupted =
      75, /* stopped by SIGTERM or SIGINT after saving: start again to go on (EX_TEMPFAIL) */
};

/* Runs `command` to its end on the calling thread. `json` is UTF-8:
 *
 *   "finetune"  a RunConfig with every field (run_config_to_json). `model` is a folder, `data.train` and `data.validation`
 *               are folders that `phalanx prepare` wrote, `output` exists and is locked by the program.
 *   "eval"      the same; the loss over `data.validation` is measured and printed. `output` is null.
 *   "export"    {"source": RUN_OR_CHECKPOINT_FOLDER, "output": FOLDER}: writes a Hugging Face folder.
 *
 * Returns a PhalanxExit. When it is neither kPhalanxOk nor kPhalanxInterrupted, `message` holds what went wrong as a
 * NUL-terminated text, cut to `message_size` bytes. A ConfigError gives kPhalanxBadInput, any other error
 * kPhalanxFailed. */
int phalanx_engine_run(const char* command, const char* json, char* message, size_t message_size);

typedef int (*PhalanxEngineRun)(const char* command, const char* json, char* message, size_t message_size);

#ifdef __cplusplus
}
#endif
#endif /* PHALANX_BIND_ENGINE_C_API_H_ */
