/// Records what runs on this thread, without changing it.
///
/// Torch operators are seen through at::RecordFunction, functions and modules of the model through
/// model/observe.h; what runs inside of either is one node. Both are switches that torch and the
/// model test anyway, so that nothing is added where nothing is recorded. Producers are found by
/// the identity of tensors, all of which stay alive until the end; memory that is about to be
/// written in place is copied first, so that every node keeps the values that it saw.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <cstdint>
#include <exception>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "inspect/graph.h"
#include "model/observe.h"

namespace kda::inspect {

/// An operation before it runs.
struct Operation {
  std::string function;
  NodeKind kind = NodeKind::kOperation;
  std::vector<model::NamedTensor> inputs;
  std::vector<model::Attribute> attributes;
  std::vector<std::int64_t> changed;
  bool random = false;
  Replay replay;
  std::int64_t gradient_of = -1;  ///< its module is taken too
};

class Recorder final : public model::CallRecorder {
 public:
  /// `statistics`: of every output of a floating type.
  explicit Recorder(bool statistics = false);
  ~Recorder() override;
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  void name_parameter(const std::string& name, const at::Tensor& tensor);
  void name_input(const at::Tensor& tensor);
  void name_result(const std::string& name, const at::Tensor& tensor);

  /// Starts recording; everything until `end_phase` belongs to it. One recorder a thread.
  void begin_phase(std::string kind, std::int64_t first_token, std::int64_t num_tokens);
  void end_phase();

  /// The graph without what led to no result outside the modules, labelled. The recorder is empty
  /// afterwards.
  Graph finish();

  // model::CallRecorder
  void enter_module(std::string name) override;
  void leave_module(const std::vector<at::Tensor>& outputs) override;
  void begin_call(model::FunctionCall call) override;
  void end_call(const std::vector<at::Tensor>& outputs) override;

  /// One operation by hand: a gradient function of autograd. Nested ones are names in `calls`.
  void begin_operation(Operation operation);
  void end_operation(const std::vector<at::Tensor>& outputs);
  /// To be called on the thread that runs the operations, where that is another one.
  void adopt_thread();
  /// The node whose output has this gradient function, or -1.
  std::int64_t node_of_gradient(const void* function) const;

 private:
  struct Slot {
    std::int64_t node;
    std::int64_t index;
    bool is_input;
  };
  struct Write {
    std::int64_t node;
    std::int64_t begin, end;  // bytes in the storage
  };

  static std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& function);
  static void on_end(const at::RecordFunction& function, at::ObserverContext*);
  void begin_operator(const at::RecordFunction& function);
  NodeInput resolve(const std::string& argument, const at::Tensor& tensor);
  void keep_before_write(const at::Tensor& tensor);
  void register_values(std::int64_t node);
  void remember_error();
  OutputRef find(const at::Tensor& tensor) const;

  bool statistics_;
  at::CallbackHandle callback_ = 0;
  bool recording_ = false;
  std::int64_t depth_ = 0;  // operations that are running, one in another
  std::int64_t open_ = -1;  // the node of the outermost one; -1: it was dropped
  bool sync_ = false;       // the outermost one runs on a device that works ahead
  std::int64_t started_ns_ = 0;
  std::vector<std::string> path_;
  Graph graph_;
  std::vector<at::Tensor> alive_;
  std::unordered_map<const c10::TensorImpl*, OutputRef> producers_;
  std::unordered_map<const c10::TensorImpl*, std::string> parameters_;
  std::unordered_map<const void*, std::vector<Write>> writes_;  // by storage
  std::unordered_map<const void*, std::vector<Slot>> slots_;    // by storage
  std::unordered_map<const void*, std::int64_t> gradient_nodes_;
  std::exception_ptr error_;  // torch swallows what callbacks throw
};

/// A copy with the strides and the alignment of the original: products of it give the same bits.
at::Tensor faithful_copy(const at::Tensor& tensor);

/// Numbers the places and writes the labels: a place is the n-th call of a function in its module
/// and phase; where another phase has run it before, the pass goes up.
void label_nodes(Graph& graph);

/// Removes nodes outside of modules that led to nothing, and constants that nobody read.
void prune(Graph& graph);

}  // namespace kda::inspect
