#include "train/gradient_buckets.h"

#include "train/plan/gradient_bucket.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <string>

namespace phalanx {
struct GradientBuckets::State {
  struct Bucket {
    std::string name;
    std::vector<std::size_t> members;
    std::size_t missing = 0;  // members without a gradient yet
    bool handed_out = false;  // in this backward pass
  };
  struct Watched {
    std::shared_ptr<torch::autograd::Node> accumulator;  // torch keeps it no longer than somebody else does
    std::uintptr_t hook;
  };

  void arrived(Bucket& bucket) {
    if (--bucket.missing == 0) {
      hand_out(bucket);
    }
  }

  void hand_out(Bucket& bucket) {
    const at::NoGradGuard no_grad;
    Tensors gradients;
    for (const std::size_t member : bucket.members) {
      const at::Tensor& parameter = parameters.list()[member].tensor;
      at::Tensor& gradient = parameter.mutable_grad();
      gradients.push_back(gradient.defined() ? gradient : parameter.new_zeros(parameter.sizes()));
      gradient.reset();
    }
    bucket.handed_out = true;
    consumer(bucket.members, gradients);
  }

  const ParameterSet& parameters;
  Consumer consumer;
  std::vector<Bucket> buckets;
  std::vector<Watched> watched;
};

namespace {

// Runs after torch has put a gradient into its parameter.
class ArrivalHook final : public torch::autograd::FunctionPostHook {
 public:
  explicit ArrivalHook(std::function<void()> arrived) : arrived_(std::move(arrived)) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    arrived_();
    return outputs;
  }

 private:
  std::function<void()> arrived_;
};

}  // namespace

GradientBuckets::GradientBuckets(const ParameterSet& parameters, Consumer consumer)
    : state_(std::make_shared<State>(State{parameters, std::move(consumer), {}, {}})) {
  for (std::size_t i = 0; i < parameters.list().size(); ++i) {
    const Parameter& parameter = parameters.list()[i];
    if (!parameter.trained) {
      continue;
    }
    const std::string name = gradient_bucket(parameter.name);
    if (state_->buckets.empty() || state_->buckets.back().name != name) {
      state_->buckets.push_back({name, {}, 0, false});
    }
    state_->buckets.back().members.push_back(i);
  }
  for (State::Bucket& bucket : state_->buckets) {
    bucket.missing = bucket.members.size();
    for (const std::size_t member : bucket.members) {
      const auto accumulator = torch::autograd::impl::grad_accumulator(parameters.list()[member].tensor);
      const auto hook = accumulator->add_post_hook(
          std::make_unique<ArrivalHook>([state = state_.get(), &bucket] { state->arrived(bucket); }));
      state_->watched.push_back({accumulator, hook});
    }
  }
}

GradientBuckets::~GradientBuckets() {
  for (const State::Watched& watched : state_->watched) {
    watched.accumulator->del_post_hook(watched.hook);
  }
}

void GradientBuckets::finish() {
  for (State::Bucket& bucket : state_->buckets) {
    if (!bucket.handed_out) {
      state_->hand_out(bucket);
    }
    bucket.missing = bucket.members.size();
    bucket.handed_out = false;
  }
}

}  // namespace phalanx
