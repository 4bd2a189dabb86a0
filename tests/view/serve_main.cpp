/// The viewer without the rest of the program, for tests from the outside (browser, random
/// requests, the TensorLens client): view_serve FILE... prints the address and serves until its
/// standard input ends.
#include <cstdio>
#include <exception>
#include <filesystem>
#include <vector>

#include "view/http_server.h"
#include "view/listener.h"
#include "view/viewer.h"

int main(int argc, char** argv) {
  try {
    const kda::view::Listener listener("127.0.0.1", 0);
    const kda::view::Viewer viewer(std::vector<std::filesystem::path>(argv + 1, argv + argc), {});
    const kda::view::HttpServer server(
        listener, [&](const kda::view::Query& query) { return viewer.respond(query); });
    std::printf("%s\n", listener.url().c_str());
    std::fflush(stdout);
    while (std::getchar() != EOF) {
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "view_serve: %s\n", error.what());
    return 1;
  }
}
