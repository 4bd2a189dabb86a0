/// Everything `kda view` answers, without the network.
#pragma once

#include <filesystem>
#include <vector>

#include "view/catalog.h"
#include "view/reply.h"
#include "view/request_guard.h"
#include "view/statistics_cache.h"
#include "view/tensorlens_api.h"

namespace kda::view {

struct ViewerOptions {
  TensorLensOptions tensorlens;
  GuardOptions guard;
};

/// Opens the files (errors: Catalog) and answers queries from any number of threads. It writes
/// nothing, and reads no path that a query names: queries choose among the open files.
class Viewer {
 public:
  Viewer(const std::vector<std::filesystem::path>& paths, const ViewerOptions& options);

  /// Never throws: every failure is a reply with a status and {"error": ...}.
  Reply respond(const Query& query) const;

  const Catalog& catalog() const { return catalog_; }

 private:
  Reply answer(const Query& query) const;

  Catalog catalog_;
  ViewerOptions options_;
  mutable StatisticsCache statistics_;
};

}  // namespace kda::view
