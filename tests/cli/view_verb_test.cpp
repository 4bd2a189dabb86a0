#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>

#include "cli/world.h"
#include "io/safetensors_writer.h"

namespace kda::cli {
namespace {

namespace fs = std::filesystem;
using testing::fresh_folder;
using testing::kda;
using testing::mentions;
using testing::Program;
using testing::ProgramResult;

fs::path tensor_file(const fs::path& folder) {
  io::SafetensorsWriter writer(folder / "t.safetensors", {{"w", io::StDtype::kU8, {2}}});
  writer.write(std::vector<std::byte>(2));
  writer.commit();
  return folder / "t.safetensors";
}

/// The port in "http://127.0.0.1:PORT/".
std::string port_of(const std::string& out) {
  const std::size_t begin = out.rfind(':') + 1;
  return out.substr(begin, out.find('/', begin) - begin);
}

TEST(ViewVerb, Signals_EndItWithTheirCode) {
  const fs::path file = tensor_file(fresh_folder("view-signal"));
  for (const int signal_number : {SIGINT, SIGTERM, SIGHUP}) {
    Program program({"view", file.string(), "--port", "0"});
    ASSERT_TRUE(program.wait_for("http://127.0.0.1:")) << program.finish(1).err;
    program.send(signal_number);
    const ProgramResult result = program.finish(30);
    EXPECT_EQ(result.exit_code, 128 + signal_number) << result.err;
    EXPECT_TRUE(mentions(result.err, "serving until Ctrl-C")) << result.err;
    EXPECT_FALSE(mentions(result.err, "warning")) << result.err;
  }
}

TEST(ViewVerb, BusyPort_IsSaid) {
  const fs::path file = tensor_file(fresh_folder("view-busy"));
  // The port of a viewer that has ended; the next one gets it by its number.
  Program first({"view", file.string(), "--port", "0"});
  ASSERT_TRUE(first.wait_for("/\n")) << first.finish(1).err;
  first.send(SIGTERM);
  const std::string port = port_of(first.finish(30).out);
  Program second({"view", file.string(), "--port", port});
  ASSERT_TRUE(second.wait_for("http://127.0.0.1:" + port)) << second.finish(1).err;
  const ProgramResult third = kda({"view", file.string(), "--port", port});
  EXPECT_EQ(third.exit_code, 1);
  EXPECT_TRUE(mentions(third.err, "port " + port + " of 127.0.0.1 is in use")) << third.err;
}

TEST(ViewVerb, OpenServer_Warns) {
  const fs::path file = tensor_file(fresh_folder("view-open"));
  Program program({"view", file.string(), "--port", "0", "--host", "0.0.0.0"});
  ASSERT_TRUE(program.wait_for("http://")) << program.finish(1).err;
  program.send(SIGTERM);
  EXPECT_TRUE(mentions(program.finish(30).err, "there is no password"));
}

TEST(ViewVerb, BadFilesAndUsage) {
  const fs::path folder = fresh_folder("view-bad");
  std::ofstream(folder / "broken.safetensors") << "not a tensor";
  const auto refused = [&](std::vector<std::string> arguments, int code, const std::string& part) {
    arguments.insert(arguments.begin(), "view");
    const ProgramResult result = kda(arguments);
    EXPECT_EQ(result.exit_code, code) << result.err;
    EXPECT_TRUE(mentions(result.err, part)) << result.err;
    EXPECT_EQ(result.out, "");
  };
  refused({"--port", "0", (folder / "broken.safetensors").string()}, 1, "broken.safetensors");
  refused({"--port", "0", (folder / "gone.json").string()}, 1, "no such file");
  refused({"--port", "0", folder.string()}, 1, "none of model.safetensors");
  refused({"--port", "0", (folder / "run/best").string()}, 1, "no such checkpoint or run folder");
  refused({}, 2, "FILE");
  refused({"x", "--port", "70000"}, 2, "--port");
  refused({"x", "--port", "0", "--normalization", "max"}, 2, "clip, minmax, zscore or none");
  refused({"x", "--port", "0", "--host", "no such host"}, 2, "host");
}

}  // namespace
}  // namespace kda::cli
