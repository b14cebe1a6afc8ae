// From tensors of a file to what cuda/ion_cuda.h takes: matrices as bfloat16 or e4m3, vectors as float32,
// q/k/v and gate/up joined, rows of Q and K in half-split order.
#pragma once

#include <functional>
#include <vector>

#include "cuda/ion_cuda.h"
#include "kernels/kernels.h"
#include "models/random_model.h"
#include "models/weights.h"

namespace ion {

// Of the layers' matrices, the head and the KV cache; the embedding is bfloat16.
struct CudaTypes {
  IonCudaMatrixType matrices = ION_CUDA_BF16, head = ION_CUDA_BF16, kv = ION_CUDA_BF16;
};

// The config in the interface's form, with the arrays that it points to.
struct CudaConfig {
  CudaConfig(const ModelConfig& config, const std::vector<FoundWeight>& found, const NamedTensors& tensors,
             const CudaTypes& types);
  CudaConfig(const CudaConfig&) = delete;
  CudaConfig& operator=(const CudaConfig&) = delete;

  IonCudaConfig values{};

 private:
  std::vector<double> frequencies_;
  std::vector<int32_t> windows_;
};

// Throws WeightError naming a tensor that the interface has no place for.
void refuse_inexpressible(const ModelConfig& config, const std::vector<FoundWeight>& found);

// Whether a matrix of a layer is e4m3 in the files.
bool has_e4m3(const std::vector<FoundWeight>& found);

// Takes num_rows rows from first_row on, as ion_cuda_model_write does. A vector's rows are its elements.
using WriteRows = std::function<void(IonCudaWeight weight, int32_t layer, int64_t first_row, int64_t num_rows,
                                     const void* rows)>;

// Converts piece by piece on the pool, never more than a fixed number of bytes at a time, and hands each
// piece to `write`. Rows that lie in the file as they are wanted are handed on without a copy. What `types`
// says is e4m3 becomes codes and a scale for each row; codes with a scale a matrix or a row stay as they are,
// those with a scale a block are rounded again. Such a head is the embedding's rows where the files tie it.
// Throws WeightError naming a tensor with values that are not finite.
void convert_weights(const ModelConfig& config, const std::vector<FoundWeight>& found, const CudaTypes& types,
                     kernels::ThreadPool& pool, const WriteRows& write);

// Makes num_rows rows of a matrix on the device, from first_row on, as ion_cuda_model_fill does.
using FillRows = std::function<void(IonCudaWeight weight, int32_t layer, int64_t first_row, int64_t num_rows,
                                    const RandomRecipe& recipe)>;

// The same for a model without files, whose vectors alone have data (models/random_model.h).
void make_weights(const ModelConfig& config, const std::vector<FoundWeight>& found, uint64_t seed,
                  kernels::ThreadPool& pool, const WriteRows& write, const FillRows& fill);

}  // namespace ion
