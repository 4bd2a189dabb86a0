/// Muon, head by head, for matrices; AdamW for everything else.
///
/// Math, for a matrix block W [r,c], its scaled gradient G, momentum mu, decay wd:
///   M = mu M + G          U = G + mu M          (Nesterov)
///   O = NS5(U)            W = W (1 - lr wd) - lr * 0.2 sqrt(max(r,c)) O
/// NS5: X = U / (|U|_F + 1e-7), transposed when r > c, then five times
///   A = X X^T,  X = a X + (b A + c A A) X     with a,b,c = 3.4445, -4.7750, 2.0315
/// which moves all singular values near 1 (about 0.7 to 1.2). The factor gives every update the RMS
/// of an AdamW step, so that learning rate and decay carry over. A weight that stacks the heads of
/// a layer (Parameter::head_blocks) is cut into its heads first, each orthogonalised alone and with
/// the scale of its own shape; stacked experts likewise.
/// Sources: Muon is scalable for LLM training (arXiv 2502.16982) equation 4 and section 2.2; Kimi
/// K2 report (arXiv 2507.20534) algorithm 1; Kimi K3 report (arXiv 2607.24653) section 2.5.
///
/// Vectors, 1 x d pseudo-queries, convolutions, gates, embedding and head go to AdamW.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "train/adamw.h"
#include "train/optimizer.h"

namespace kda::train {

struct MuonOptions {
  double momentum = 0.95;
  double weight_decay = 0.1;
};

/// Whether Muon updates this parameter: a matrix, or matrices of experts, whose blocks have at
/// least two rows and columns.
bool takes_muon(const model::Parameter& parameter);

/// NS5 of each matrix of `batch` [N,r,c], in the dtype given. f64 for tests, f32, or bf16.
at::Tensor newton_schulz(const at::Tensor& batch);

class Muon final : public Optimizer {
 public:
  Muon(std::vector<model::Parameter> parameters, const MuonOptions& options,
       const AdamWOptions& others);

  void set_updates(std::int64_t updates) override;
  /// "momentum.<parameter>" for matrices, AdamW's names for the others.
  NamedTensors state() const override;
  std::string description() const override;

 protected:
  void update(double lr, double gradient_scale) override;

 private:
  /// Parameters whose blocks have one shape and are orthogonalised in one batch.
  struct Group {
    std::vector<std::size_t> members;  ///< indices into matrices_
    std::int64_t rows = 0;             ///< of a block
    std::int64_t columns = 0;
  };
  void make_groups();
  void update_group(const Group& group, double lr, double gradient_scale);

  MuonOptions options_;
  std::vector<model::Parameter> matrices_;
  std::vector<at::Tensor> momentum_;
  std::vector<Group> groups_;
  std::unique_ptr<AdamW> others_;
};

}  // namespace kda::train
