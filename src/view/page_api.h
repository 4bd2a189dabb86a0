/// The endpoints of the page in src/view/page: numbers as they are, cut and joined to what a plot
/// can show.
///   /view/files                            what is open
///   /view/tensor?key=K[&axes=A,B][&at=I,J,...][&window=F:T,F:T][&cells=N]
///                                          up to three axes of a tensor, the others at an index
///   /view/trace?file=LABEL                 a trace without its nodes
///   /view/graph?file=LABEL&phase=N         the nodes of one phase, in columns
///   /view/node?file=LABEL&label=L          one node
///   /view/metrics?file=LABEL               the curves of a run
#pragma once

#include "view/catalog.h"
#include "view/reply.h"
#include "view/statistics_cache.h"

namespace kda::view {

/// Most cells of one plot.
inline constexpr std::int64_t kMaxCells = std::int64_t{1} << 18;
inline constexpr std::int64_t kDefaultCells = std::int64_t{1} << 16;

Reply page_files(const Catalog& catalog);
/// {"key", "dtype", "shape", "axes", "at", "window": [[from, to], ...], "cells": [...],
/// "block": [...], "skip": [...], "mean", "low", "high" (null unless reduced), "reduced": null or
/// what was joined, "statistics" of the whole tensor}. 404 for an unknown key, 400 for bad axes,
/// indices or windows.
Reply page_tensor(const Catalog& catalog, StatisticsCache& statistics, const Query& query);
Reply page_trace(const Catalog& catalog, const Query& query);
Reply page_graph(const Catalog& catalog, const Query& query);
Reply page_node(const Catalog& catalog, const Query& query);
Reply page_metrics(const Catalog& catalog, const Query& query);

}  // namespace kda::view
