/// The endpoints of TensorLens 0.0.3, so that its page and programs written for it can read from
/// here:
///   /api/config                            {status, max_points, point_size, refresh_interval,
///                                          disable_transforms}
///   /api/list_tensors                      {count, available_tensors: [{key, name, shape}]}
///   /api/get_tensor?tensor_key=K[&code=E]  {tensor_key, dims, shape, data}: int8 (quantize.h), E
///   an
///                                          expression (expression.h)
/// Beyond it: `normalization=clip|minmax|zscore|none` and `range=LOW,HIGH` choose the rule for one
/// request, and of a result over `max_points` elements every k-th is sent with "reduced" saying so.
#pragma once

#include "view/catalog.h"
#include "view/quantize.h"
#include "view/reply.h"
#include "view/statistics_cache.h"

namespace kda::view {

struct TensorLensOptions {
  Int8Rule rule;
  std::int64_t max_points = 1'000'000;
};

Reply tensorlens_config(const TensorLensOptions& options);
Reply tensorlens_list(const Catalog& catalog);
/// 400 without a key or with a bad expression or rule, 404 for an unknown key.
Reply tensorlens_get(const Catalog& catalog, const TensorLensOptions& options,
                     StatisticsCache& statistics, const Query& query);

}  // namespace kda::view
