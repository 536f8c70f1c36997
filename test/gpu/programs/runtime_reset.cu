// cudaDeviceReset in mid-life: every few units everything is summed up, the device is reset, and life begins anew from the sum.
#include "work.cuh"

struct Reset : work::Work {
  uint64_t history = 1;

  void unit(uint64_t i) override {
    mix_all(i);
    if (i % 24 != 23) {
      return;
    }
    history = history * 31 + sum_of_blocks();
    if (i % 48 == 47) {  // the other time the reset finds everything still allocated
      for (const work::Block& block : blocks) {
        REQUIRE(cudaFree(block.data));
      }
    }
    REQUIRE(cudaDeviceReset());
    blocks.clear();
    seed = history;
    allocate(held);
  }

  uint64_t checksum() override { return history * 31 + sum_of_blocks(); }
};

int main(int argc, char** argv) {
  Reset program;
  return work::run(program, argc, argv);
}
