#include "train/metrics.h"

#include "core/error.h"
#include "core/file.h"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <sstream>

namespace phalanx {
namespace {

// The lines of a former run that still count.
std::string lines_up_to(const std::string& path, std::int64_t last_step) {
  std::istringstream text(read_text(path));
  std::string kept, line;
  while (std::getline(text, line)) {
    try {
      const Json parsed = Json::parse(line, path);
      const Json* step = parsed.find("step");
      if (step != nullptr && step->as_integer() <= last_step) {
        kept += line + "\n";
      }
    } catch (const Error&) {
      // Cut off in the middle of writing: the step was not finished either.
    }
  }
  return kept;
}

}  // namespace

std::string duration_text(double seconds) {
  const auto total = static_cast<std::int64_t>(seconds + 0.5);
  std::ostringstream out;
  out << std::setfill('0');
  if (total >= 3600) {
    out << total / 3600 << ":" << std::setw(2);
  }
  out << total / 60 % 60 << ":" << std::setw(2) << total % 60;
  return out.str();
}

Json to_json(const StepMetrics& m) {
  Json line = Json::object();
  line.set("step", m.step);
  line.set("epoch", m.epoch);
  line.set("loss", m.loss);
  line.set("accuracy", m.accuracy);
  line.set("aux_loss", m.aux_loss);
  line.set("grad_norm", m.grad_norm);
  line.set("learning_rate", m.learning_rate);
  line.set("tokens_per_second", m.tokens_per_second);
  line.set("tokens", m.tokens);
  line.set("supervised_tokens", m.supervised_tokens);
  line.set("seconds", m.seconds);
  line.set("expert_load", m.expert_load);
  line.set("dead_experts", m.dead_experts);
  return line;
}

std::string progress_line(const StepMetrics& m) {
  std::ostringstream out;
  out << "step " << m.step << "/" << m.total_steps << std::fixed << std::setprecision(4) << "  loss "
      << m.loss << std::setprecision(3) << "  grad norm " << m.grad_norm << std::scientific
      << std::setprecision(2) << "  lr " << m.learning_rate << std::fixed << std::setprecision(0) << "  "
      << m.tokens_per_second << " tokens/s" << std::setprecision(2) << "  epoch " << m.epoch;
  if (m.expert_load > 0.0) {
    out << "  load max/mean " << std::setprecision(1) << m.expert_load;
  }
  out << "  left " << duration_text(m.seconds_left);
  return out.str();
}

MetricsFile::MetricsFile(std::string path, std::int64_t last_step) : path_(std::move(path)) {
  if (std::filesystem::exists(path_)) {
    write_file_atomic(path_, lines_up_to(path_, last_step));
  }
}

void MetricsFile::append(const Json& line) {
  std::ofstream file(path_, std::ios::app);
  file << line.dump() << "\n";
  file.flush();
  PHALANX_CHECK(file.good(), IoError, path_, ": cannot append metrics", errno_text(errno),
                "; free space or make the folder writable, then start the same command again to resume");
}

}  // namespace phalanx
