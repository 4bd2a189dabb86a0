// Which backend serves a call, why the others do not, and that nothing falls back in silence.
#include <gtest/gtest.h>

#include <algorithm>

#include "dispatch/backend_table.h"
#include "support/legal_call.h"

namespace kda::test {
namespace {

const BackendVerdict& verdict_of(const BackendChoice& choice, Backend backend) {
  for (const BackendVerdict& verdict : choice.verdicts) {
    if (verdict.backend == backend) return verdict;
  }
  throw std::logic_error("no verdict");
}

template <typename Call>
std::string unsupported_text(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "served, but a refusal was expected";
  return {};
}

void expect_part(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "'" << text << "' lacks '" << part << "'";
}

class Dispatch : public ::testing::Test, public LegalCall {
 protected:
  // The same call with every tensor said to be in device memory.
  ChunkForwardParams on_device() {
    ChunkForwardParams p = forward();
    for (ConstTensorView* view : {&p.in.q, &p.in.k, &p.in.v, &p.in.g_ln, &p.in.beta}) {
      view->space = MemorySpace::kCuda;
    }
    p.o.space = MemorySpace::kCuda;
    return p;
  }
};

TEST_F(Dispatch, HostBackends_ArePresentInOrder) {
  const std::vector<Backend> present = available_backends();
  ASSERT_GE(present.size(), 2U);
  const auto cpu = std::find(present.begin(), present.end(), Backend::kCpu);
  const auto ref = std::find(present.begin(), present.end(), Backend::kRef);
  ASSERT_NE(cpu, present.end());
  ASSERT_NE(ref, present.end());
  EXPECT_LT(cpu - present.begin(), ref - present.begin()) << "the oracle is the last resort";
}

TEST_F(Dispatch, Explain_HasOneVerdictPerBackendAndChoosesTheFirstThatCan) {
  for (const BackendChoice& choice :
       {explain_chunk_forward(forward()), explain_chunk_backward(backward()),
        explain_recurrent_forward(recurrent())}) {
    ASSERT_EQ(choice.verdicts.size(), 3U);
    Backend first = Backend::kAuto;
    for (const BackendVerdict& verdict : choice.verdicts) {
      if (verdict.reason.empty() && first == Backend::kAuto) first = verdict.backend;
      EXPECT_TRUE(verdict.available || !verdict.reason.empty()) << name_of(verdict.backend);
    }
    EXPECT_EQ(choice.chosen, first);
    EXPECT_TRUE(verdict_of(choice, Backend::kRef).reason.empty());
  }
}

TEST_F(Dispatch, Auto_TakesTheSimdBackendForCommonCalls) {
  EXPECT_EQ(explain_chunk_forward(forward()).chosen, Backend::kCpu);
  EXPECT_EQ(explain_chunk_backward(backward()).chosen, Backend::kCpu);
  EXPECT_EQ(explain_recurrent_forward(recurrent()).chosen, Backend::kCpu);
}

TEST_F(Dispatch, ExplicitBackend_IsRefusedWithTheReason) {
  const std::string text =
      unsupported_text([&] { chunk_forward(forward(), {.backend = Backend::kCuda}); });
  expect_part(text, "chunk_forward: backend cuda cannot serve this call");
  const BackendVerdict cuda = verdict_of(explain_chunk_forward(forward()), Backend::kCuda);
  EXPECT_NE(cuda.reason, "");
  expect_part(text, cuda.reason);
}

TEST_F(Dispatch, HostBackends_RefuseDeviceMemory) {
  for (Backend backend : {Backend::kRef, Backend::kCpu}) {
    const std::string text =
        unsupported_text([&] { chunk_forward(on_device(), {.backend = backend}); });
    expect_part(text, std::string("backend ") + name_of(backend));
    expect_part(text, "the tensors are in cuda memory");
  }
}

TEST_F(Dispatch, Auto_WithNoCandidateSaysWhyForEach) {
  const BackendChoice choice = explain_chunk_forward(on_device());
  if (verdict_of(choice, Backend::kCuda).available) GTEST_SKIP() << "a CUDA backend is loaded";
  EXPECT_EQ(choice.chosen, Backend::kAuto);
  const std::string text = unsupported_text([&] { chunk_forward(on_device()); });
  expect_part(text, "no backend can serve this call");
  expect_part(text, "cuda: not loaded");
  expect_part(text, "cpu: the tensors are in cuda memory");
  expect_part(text, "ref: the tensors are in cuda memory");
}

TEST_F(Dispatch, ArgumentErrors_ComeBeforeTheChoice) {
  ChunkForwardParams p = forward();
  p.in.k = {};
  expect_refused([&] { chunk_forward(p, {.backend = Backend::kCuda}); }, {"k:", "required"});
  expect_refused([&] { explain_chunk_forward(p); }, {"k:", "required"});
}

TEST_F(Dispatch, WorkspaceOfARefusedCall_IsRefusedToo) {
  unsupported_text([&] { chunk_forward_workspace_bytes(forward(), {.backend = Backend::kCuda}); });
  unsupported_text(
      [&] { chunk_backward_workspace_bytes(backward(), {.backend = Backend::kCuda}); });
  EXPECT_EQ(chunk_forward_workspace_bytes(forward(), {.backend = Backend::kRef}), 0U);
}

TEST_F(Dispatch, Registering_NeedsAConcreteBackend) {
  EXPECT_THROW(register_backend(nullptr), Error);
  BackendTable table;
  EXPECT_THROW(register_backend(&table), Error);
}

// A backend that says no is asked, named and passed over; one that says yes is called.
int g_calls = 0;
bool g_willing = false;

TEST_F(Dispatch, RegisteredBackend_IsAskedAndCalled) {
  static const BackendTable table = [] {
    BackendTable t;
    t.backend = Backend::kCuda;
    t.unsupported = [](Op, const core::Problem&) -> std::string {
      return g_willing ? "" : "K=6 has no kernel";
    };
    t.chunk_forward = [](const ChunkForwardParams&, const core::Problem&, const Context&) {
      ++g_calls;
    };
    t.chunk_forward_workspace = [](const ChunkForwardParams&, const core::Problem&) {
      return std::size_t{1234};
    };
    return t;
  }();
  if (verdict_of(explain_chunk_forward(forward()), Backend::kCuda).available) {
    GTEST_SKIP() << "a CUDA backend is loaded";
  }
  register_backend(&table);
  const std::string text = unsupported_text([&] { chunk_forward(on_device()); });
  expect_part(text, "cuda: K=6 has no kernel");
  EXPECT_EQ(g_calls, 0);
  g_willing = true;
  chunk_forward(on_device());
  EXPECT_EQ(g_calls, 1);
  EXPECT_EQ(chunk_forward_workspace_bytes(on_device()), 1234U);
  EXPECT_EQ(explain_chunk_forward(on_device()).chosen, Backend::kCuda);
  EXPECT_EQ(explain_chunk_forward(forward()).chosen, Backend::kCpu) << "host calls stay there";
}

}  // namespace
}  // namespace kda::test
