#include "conformance/chunk_cases.h"

#include <utility>

namespace kda::test {
namespace {

using Cases = std::vector<Case>;
using NamedDecays = std::pair<const char*, Decays>;

constexpr NamedDecays kAllDecays[] = {
    {"mild", Decays::kMild},
    {"zero", Decays::kZero},
    {"slow", Decays::kSlow},
    {"bound", Decays::kBound},
    {"strong", Decays::kStrong},
    {"resets", Decays::kResets},
    {"alternating", Decays::kAlternating},
    {"all_resets", Decays::kAllResets},
    {"mixed", Decays::kMixed},
};

// Around every multiple of the chunk, and several chunks with a ragged end.
void add_lengths(Cases* cases) {
  for (int chunk : {16, 32, 64, 128}) {
    for (int T : {1, chunk - 1, chunk, chunk + 1, 3 * chunk + 5}) {
      cases->push_back({.name = "length_c" + std::to_string(chunk) + "_t" + std::to_string(T),
                        .T = T,
                        .HV = 2,
                        .chunk = chunk,
                        .seed = 100});
    }
  }
}

void add_head_dims(Cases* cases) {
  constexpr std::pair<int, int> kDims[] = {{64, 64}, {128, 128}, {60, 60},  {100, 100}, {60, 100},
                                           {32, 96}, {96, 32},   {64, 128}, {1, 1},     {7, 3},
                                           {3, 7},   {17, 33},   {256, 64}, {64, 256}};
  for (auto [K, V] : kDims) {
    cases->push_back({.name = "dims_k" + std::to_string(K) + "_v" + std::to_string(V),
                      .T = 70,
                      .K = K,
                      .V = V,
                      .seed = 200});
  }
  cases->push_back(
      {.name = "dims_k256_v256", .T = 37, .K = 256, .V = 256, .chunk = 32, .seed = 201});
}

void add_groups(Cases* cases) {
  constexpr std::pair<int, int> kHeads[] = {{3, 3}, {2, 4}, {2, 6}, {1, 4}, {3, 9}};
  for (auto [H, HV] : kHeads) {
    cases->push_back({.name = "heads_h" + std::to_string(H) + "_hv" + std::to_string(HV),
                      .B = 2,
                      .T = 70,
                      .H = H,
                      .HV = HV,
                      .K = 24,
                      .V = 16,
                      .qk_l2norm = H == 2,
                      .seed = 300});
  }
  cases->push_back(
      {.name = "heads_h16_hv32", .T = 40, .H = 16, .HV = 32, .K = 32, .V = 32, .seed = 301});
}

void add_decays(Cases* cases) {
  for (auto [name, decays] : kAllDecays) {
    for (int chunk : {16, 64, 128}) {
      cases->push_back({.name = std::string("decay_") + name + "_c" + std::to_string(chunk),
                        .T = 133,
                        .K = 32,
                        .V = 32,
                        .chunk = chunk,
                        .decays = decays,
                        .seed = 400});
    }
  }
}

void add_raw_gates(Cases* cases) {
  constexpr std::pair<const char*, GateInput> kGates[] = {
      {"standard", GateInput::kStandard},
      {"standard_no_bias", GateInput::kStandardNoBias},
      {"safe", GateInput::kSafe},
      {"safe_no_a_log", GateInput::kSafeNoALog},
      {"safe_bare", GateInput::kSafeBare}};
  for (auto [name, gate] : kGates) {
    for (auto [suffix, decays] :
         {NamedDecays{"", Decays::kMild}, NamedDecays{"_saturated", Decays::kBound}}) {
      cases->push_back({.name = std::string("gate_") + name + suffix,
                        .B = 2,
                        .T = 70,
                        .HV = 2,
                        .K = 24,
                        .gate = gate,
                        .decays = decays,
                        .betas = Betas::kLogit,
                        .seed = 500});
    }
  }
  cases->push_back({.name = "gate_layer",
                    .B = 2,
                    .T = 70,
                    .H = 2,
                    .HV = 4,
                    .K = 32,
                    .V = 32,
                    .gate = GateInput::kSafe,
                    .keys = Keys::kNormal,
                    .betas = Betas::kLogitDoubled,
                    .qk_l2norm = true,
                    .seed = 501});
}

void add_keys_and_betas(Cases* cases) {
  // Near-identical keys with little decay: the powers of the chunk's matrix grow and cancel.
  constexpr std::pair<const char*, Betas> kHardBetas[] = {
      {"near_one", Betas::kNearOne}, {"two", Betas::kTwo}, {"logit_high", Betas::kLogitHigh}};
  for (auto [beta_name, betas] : kHardBetas) {
    for (auto [decay_name, decays] :
         {NamedDecays{"zero", Decays::kZero}, NamedDecays{"slow", Decays::kSlow},
          NamedDecays{"bound", Decays::kBound}, NamedDecays{"alternating", Decays::kAlternating}}) {
      cases->push_back({.name = std::string("identical_keys_") + beta_name + "_" + decay_name,
                        .T = 197,
                        .K = 32,
                        .V = 16,
                        .decays = decays,
                        .keys = Keys::kIdentical,
                        .betas = betas,
                        .seed = 600});
    }
  }
  cases->push_back({.name = "identical_keys_long",
                    .T = 1024,
                    .K = 64,
                    .V = 64,
                    .decays = Decays::kSlow,
                    .keys = Keys::kIdentical,
                    .betas = Betas::kNearOne,
                    .seed = 601});
  cases->push_back({.name = "identical_keys_layer",
                    .T = 1024,
                    .H = 2,
                    .HV = 2,
                    .K = 128,
                    .V = 128,
                    .decays = Decays::kSlow,
                    .keys = Keys::kIdentical,
                    .betas = Betas::kNearOne,
                    .seed = 603});
  cases->push_back({.name = "identical_keys_t8192",
                    .T = 8192,
                    .decays = Decays::kSlow,
                    .keys = Keys::kIdentical,
                    .betas = Betas::kNearOne,
                    .seed = 604});
  cases->push_back({.name = "identical_keys_closed_gate",
                    .T = 4096,
                    .gate = GateInput::kSafe,
                    .decays = Decays::kZero,
                    .keys = Keys::kIdentical,
                    .betas = Betas::kLogitHigh,
                    .qk_l2norm = true,
                    .seed = 605});
  for (int chunk : {16, 32, 128}) {
    cases->push_back({.name = "identical_keys_c" + std::to_string(chunk),
                      .T = 197,
                      .K = 32,
                      .V = 16,
                      .chunk = chunk,
                      .decays = Decays::kZero,
                      .keys = Keys::kIdentical,
                      .betas = Betas::kTwo,
                      .seed = 602});
  }
  cases->push_back({.name = "keys_unnormalised",
                    .T = 133,
                    .K = 32,
                    .V = 32,
                    .keys = Keys::kUnnormalised,
                    .seed = 610});
  cases->push_back({.name = "keys_normal_strong_decay",
                    .T = 70,
                    .K = 32,
                    .V = 32,
                    .decays = Decays::kStrong,
                    .keys = Keys::kNormal,
                    .seed = 611});
  cases->push_back({.name = "keys_normal_l2norm",
                    .T = 70,
                    .K = 60,
                    .V = 32,
                    .keys = Keys::kNormal,
                    .qk_l2norm = true,
                    .seed = 612});
  cases->push_back({.name = "keys_tiny_l2norm",
                    .T = 70,
                    .K = 128,
                    .V = 16,
                    .keys = Keys::kTiny,
                    .qk_l2norm = true,
                    .seed = 613});
  cases->push_back(
      {.name = "keys_some_zero", .T = 70, .K = 32, .V = 16, .keys = Keys::kSomeZero, .seed = 614});
  cases->push_back({.name = "keys_some_zero_l2norm",
                    .T = 70,
                    .K = 32,
                    .V = 16,
                    .keys = Keys::kSomeZero,
                    .qk_l2norm = true,
                    .seed = 615});
  constexpr std::pair<const char*, Betas> kBetas[] = {{"zero", Betas::kZero},
                                                      {"two", Betas::kTwo},
                                                      {"logit", Betas::kLogit},
                                                      {"logit_high", Betas::kLogitHigh},
                                                      {"logit_doubled", Betas::kLogitDoubled}};
  for (auto [name, betas] : kBetas) {
    cases->push_back({.name = std::string("beta_") + name,
                      .T = 133,
                      .HV = 2,
                      .K = 24,
                      .V = 24,
                      .betas = betas,
                      .seed = 620});
  }
}

void add_packed(Cases* cases) {
  const std::vector<std::pair<const char*, std::vector<std::int64_t>>> kPackings = {
      {"empty_and_single", {0, 0, 17, 18, 18, 37, 37}},
      {"empty_in_the_middle", {0, 64, 64, 200}},
      {"single_tokens", {0, 1, 2, 3, 66}},
      {"tails_1_2_7_15", {0, 65, 131, 202, 281}},
      {"shared_tile", {0, 40, 104}},
      {"one_short", {0, 15}},
      {"long_tails", {0, 640, 1423}},
      {"ends_with_empties", {0, 0, 120, 133, 133}},
      {"all_empty", {0, 0, 0}},
      {"no_sequence", {0}}};
  std::uint64_t seed = 700;
  for (const auto& [name, cu] : kPackings) {
    cases->push_back({.name = std::string("packed_") + name,
                      .T = cu.back(),
                      .HV = 2,
                      .K = 20,
                      .V = 24,
                      .cu = cu,
                      .h_kv = true,
                      .seed = seed++});
  }
  cases->push_back({.name = "packed_gate",
                    .T = 281,
                    .H = 2,
                    .HV = 4,
                    .K = 16,
                    .V = 16,
                    .cu = {0, 65, 131, 202, 281},
                    .gate = GateInput::kSafe,
                    .betas = Betas::kLogit,
                    .qk_l2norm = true,
                    .cu_i32 = true,
                    .seed = 720});
  cases->push_back({.name = "packed_resets_c16",
                    .T = 133,
                    .K = 16,
                    .V = 16,
                    .cu = {0, 0, 63, 64, 133},
                    .chunk = 16,
                    .decays = Decays::kResets,
                    .seed = 721});
}

void add_optional_tensors(Cases* cases) {
  const Case base{.name = "", .T = 70, .HV = 2, .K = 24, .V = 16, .seed = 800};
  const auto add = [&](const char* name, auto change) {
    Case c = base;
    c.name = std::string("optional_") + name;
    change(c);
    cases->push_back(c);
  };
  add("no_states", [](Case& c) { c.initial_state = c.final_state = c.d_final_state = false; });
  add("no_initial_state", [](Case& c) { c.initial_state = false; });
  add("no_final_state", [](Case& c) { c.final_state = c.d_final_state = false; });
  add("loss_of_final_state_only", [](Case& c) { c.d_o = false; });
  add("loss_of_o_only", [](Case& c) { c.d_final_state = false; });
  add("no_loss", [](Case& c) { c.d_o = c.d_final_state = false; });
  add("scale", [](Case& c) { c.scale = -0.5; });
  add("scale_zero", [](Case& c) { c.scale = 0.0; });
  add("h_kv_c16", [](Case& c) {
    c.T = 197;
    c.h_kv = true;
    c.chunk = 16;
  });
  add("h_kv_c64", [](Case& c) {
    c.B = 2;
    c.T = 197;
    c.h_kv = true;
  });
  add("h_kv_c128", [](Case& c) {
    c.T = 261;
    c.h_kv = true;
    c.chunk = 128;
  });
  add("narrow_gate_and_beta", [](Case& c) { c.narrow_gate = true; });
  add("narrow_raw_gate_and_logit", [](Case& c) {
    c.narrow_gate = true;
    c.gate = GateInput::kStandard;
    c.betas = Betas::kLogit;
  });
  add("wide_gradients", [](Case& c) {
    c.wide_gradients = true;
    c.narrow_gate = true;
    c.qk_l2norm = true;
  });
  add("no_tokens", [](Case& c) { c.T = 0; });
  add("no_rows", [](Case& c) { c.B = 0; });
}

void add_layouts(Cases* cases) {
  constexpr std::pair<const char*, Layout> kLayouts[] = {{"fused_slice", Layout::kFusedSlice},
                                                         {"misaligned", Layout::kMisaligned},
                                                         {"head_major", Layout::kHeadMajor},
                                                         {"last_stride_2", Layout::kLastStride2}};
  for (auto [name, layout] : kLayouts) {
    cases->push_back({.name = std::string("layout_") + name,
                      .B = 2,
                      .T = 70,
                      .H = 2,
                      .HV = 4,
                      .K = 20,
                      .V = 12,
                      .in_layout = layout,
                      .out_layout = layout,
                      .seed = 900});
    cases->push_back({.name = std::string("layout_") + name + "_k64",
                      .B = 2,
                      .T = 70,
                      .H = 2,
                      .HV = 2,
                      .K = 64,
                      .V = 64,
                      .gate = GateInput::kSafe,
                      .betas = Betas::kLogit,
                      .qk_l2norm = true,
                      .in_layout = layout,
                      .out_layout = layout,
                      .state_layout = Layout::kFusedSlice,
                      .seed = 901});
  }
  cases->push_back({.name = "layout_state_vk",
                    .T = 70,
                    .HV = 2,
                    .K = 20,
                    .V = 12,
                    .h_kv = true,
                    .state_layout = Layout::kTransposed,
                    .seed = 902});
  cases->push_back({.name = "layout_state_vk_square",
                    .T = 70,
                    .HV = 2,
                    .K = 32,
                    .V = 32,
                    .state_layout = Layout::kTransposed,
                    .seed = 903});
}

}  // namespace

std::vector<Case> chunk_cases() {
  Cases cases;
  add_lengths(&cases);
  add_head_dims(&cases);
  add_groups(&cases);
  add_decays(&cases);
  add_raw_gates(&cases);
  add_keys_and_betas(&cases);
  add_packed(&cases);
  add_optional_tensors(&cases);
  add_layouts(&cases);
  return cases;
}

}  // namespace kda::test
