// finetune RECIPE: a whole training run on the C++ library.
#include <fstream>
#include <iterator>
#include <phalanx/trainer.h>
#include <string>

int main(int, char** argv) {
  std::ifstream file(argv[1]);
  const std::string recipe(std::istreambuf_iterator<char>(file), {});
  return phalanx::finetune(recipe) == phalanx::FinetuneEnd::kFinished ? 0 : 1;
}
