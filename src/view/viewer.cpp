#include "view/viewer.h"

#include <exception>
#include <new>
#include <string_view>

#include "io/escape.h"
#include "kda/error.h"
#include "view/assets.h"
#include "view/page_api.h"

namespace kda::view {
namespace {

constexpr std::string_view kRawPrefix = "/tensorlens/";

Reply raw_file(const Catalog& catalog, std::string_view name) {
  const std::filesystem::path* path = catalog.find_raw(name);
  if (path == nullptr) return error_reply(404, "File not found: " + io::escaped(name));
  Reply reply;
  reply.type = "application/octet-stream";
  reply.file = *path;
  return reply;
}

}  // namespace

Viewer::Viewer(const std::vector<std::filesystem::path>& paths, const ViewerOptions& options)
    : catalog_(paths), options_(options) {
  check(options.tensorlens.rule);
  if (options.tensorlens.max_points < 1) {
    throw Error(ErrorCode::kInvalidArgument, "max_points: expected at least 1, got " +
                                                 std::to_string(options.tensorlens.max_points));
  }
}

Reply Viewer::respond(const Query& query) const {
  try {
    if (auto refused = refusal(query, options_.guard)) return *refused;
    return answer(query);
  } catch (const Error& error) {
    return error_reply(error.code() == ErrorCode::kInvalidArgument ? 400 : 500, error.what());
  } catch (const std::bad_alloc&) {
    return error_reply(503, "out of memory");
  } catch (const std::exception& error) {
    return error_reply(500, error.what());
  }
}

Reply Viewer::answer(const Query& query) const {
  const std::string& path = query.path;
  if (const Asset* asset = find_asset(path)) {
    Reply reply;
    reply.type = asset->type;
    reply.asset = asset->bytes;
    return reply;
  }
  if (path == "/api/config") return tensorlens_config(options_.tensorlens);
  if (path == "/api/list_tensors") return tensorlens_list(catalog_);
  if (path == "/api/get_tensor") {
    return tensorlens_get(catalog_, options_.tensorlens, statistics_, query);
  }
  if (path == "/view/files") return page_files(catalog_);
  if (path == "/view/tensor") return page_tensor(catalog_, statistics_, query);
  if (path == "/view/trace") return page_trace(catalog_, query);
  if (path == "/view/graph") return page_graph(catalog_, query);
  if (path == "/view/node") return page_node(catalog_, query);
  if (path == "/view/metrics") return page_metrics(catalog_, query);
  if (path.starts_with(kRawPrefix)) {
    return raw_file(catalog_, std::string_view(path).substr(kRawPrefix.size()));
  }
  return error_reply(404, "no such page: " + io::escaped(path));
}

}  // namespace kda::view
