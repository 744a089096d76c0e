// What a lane owns of every head: slots, each of two vectors of kWidth values that the rotation mixes. For the rotary dimensions
// these are i ... and i + D/2 ..., so that a lane rotates without asking another; the dimensions past D form slots of two
// neighbouring vectors, turned by no angle. kLanes lanes share a head, a warp works on 32 / kLanes heads at a time.
#pragma once
#include "kernels/common/reduce.cuh"
#include "kernels/common/vector.cuh"
#include "kernels/rope/qk_norm_rope.h"

namespace phalanx::kernels {

template <class Element, int kWidthOf, int kLanesOf, int kSlotsOf>
struct HeadLayout {
  using T = Element;
  static constexpr int kWidth = kWidthOf;
  static constexpr int kLanes = kLanesOf;
  static constexpr int kSlots = kSlotsOf;  // of a lane
  static constexpr int kGroups = kWarpSize / kLanes;
};

__device__ inline int lane_of_thread() { return static_cast<int>(threadIdx.x) % kWarpSize; }

// Number of the head, among the heads that a warp works on at a time.
template <class L>
__device__ int group_of_lane() {
  return lane_of_thread() / L::kLanes;
}

// Positions of a lane's slot in a head; `size`, past the end, where there is nothing.
struct Slot {
  int first, second;
  int angle;  // position in the rows of cos and sin; -1: not rotated
};

template <class L>
__device__ Slot slot_of_lane(int index, int size, int half) {
  const int number = index * L::kLanes + lane_of_thread() % L::kLanes;
  const int at = number * L::kWidth;
  if (at < half) {
    return {at, half + at, at};
  }
  const int first = 2 * half + 2 * (at - half);
  return {min(first, size), min(first + L::kWidth, size), -1};
}

// A lane's values in fp32, one array per side of its slots.
template <class L>
struct HeadValues {
  float first[L::kSlots][L::kWidth], second[L::kSlots][L::kWidth];
};

// The same as they are in memory.
template <class L>
class HeadPart {
 public:
  using T = typename L::T;

  __device__ void fill(float value) {
#pragma unroll
    for (int s = 0; s < L::kSlots; ++s) {
      first_[s] = second_[s] = Vector::all(value);
    }
  }

  // What the head does not have keeps its value.
  __device__ void load(const T* head, int size, int half) {
#pragma unroll
    for (int s = 0; s < L::kSlots; ++s) {
      const Slot slot = slot_of_lane<L>(s, size, half);
      if (slot.first < size) {
        first_[s] = Vector::load(head + slot.first);
      }
      if (slot.second < size) {
        second_[s] = Vector::load(head + slot.second);
      }
    }
  }

  __device__ float first(int s, int i) const { return first_[s][i]; }
  __device__ float second(int s, int i) const { return second_[s][i]; }

 private:
  using Vector = PackedValues<T, L::kWidth>;
  Vector first_[L::kSlots], second_[L::kSlots];
};

template <class L>
__device__ void store_head(const HeadValues<L>& values, typename L::T* head, int size, int half) {
#pragma unroll
  for (int s = 0; s < L::kSlots; ++s) {
    const Slot slot = slot_of_lane<L>(s, size, half);
    if (slot.first < size) {
      store_values<L::kWidth>(values.first[s], head + slot.first);
    }
    if (slot.second < size) {
      store_values<L::kWidth>(values.second[s], head + slot.second);
    }
  }
}

// Cosines and sines of a token.
template <class L>
struct HeadAngles {
  float cos[L::kSlots][L::kWidth], sin[L::kSlots][L::kWidth];

  __device__ HeadAngles(const RopeAngles& angles, std::int64_t token, int size, int half) {
#pragma unroll
    for (int s = 0; s < L::kSlots; ++s) {
      const Slot slot = slot_of_lane<L>(s, size, half);
      if (slot.angle >= 0) {
        load_values<L::kWidth>(angles.cos + token * half + slot.angle, cos[s]);
        load_values<L::kWidth>(angles.sin + token * half + slot.angle, sin[s]);
      } else {
#pragma unroll
        for (int i = 0; i < L::kWidth; ++i) {
          cos[s][i] = 1.0f;
          sin[s][i] = 0.0f;
        }
      }
    }
  }
};

}  // namespace phalanx::kernels
