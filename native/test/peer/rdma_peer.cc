// A peer on the soft provider for programs that other people wrote: rdma-core's examples and
// perftest.
//   rdma_peer PROGRAM LOCAL-ADDRESS [HOST] [--type rc|uc|ud] [--verb send|write|read|atomic]
//             [--port N] [--size N] [--iterations N] [--mtu N] [--pcap FILE] [--timeout-ms N]
// PROGRAM: pingpong-server, pingpong-client, rping-server, rping-client, perftest-server,
// perftest-client. Servers print "listening" when they can be called; in the end one line of JSON
// says what happened, and the exit code is 0 only when all of it was right.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "peer/programs.h"

using namespace nvmeof;
using namespace nvmeof::peer;

namespace {

struct Program {
  const char* name;
  void (*run)(const Settings&);
  bool client;
};
constexpr Program kPrograms[] = {
    {"pingpong-server", [](const Settings& s) { pingpong(s, true); }, false},
    {"pingpong-client", [](const Settings& s) { pingpong(s, false); }, true},
    {"rping-server", rping_server, false},
    {"rping-client", rping_client, true},
    {"perftest-server", perftest_server, false},
    {"perftest-client", perftest_client, true},
};

rdma::QpType type_of(const std::string& text) {
  if (text == "rc") return rdma::QpType::Rc;
  if (text == "uc") return rdma::QpType::Uc;
  if (text == "ud") return rdma::QpType::Ud;
  die("no service \"" + text + "\"");
}

void apply(Settings& settings, const std::string& name, const char* value) {
  const auto number = static_cast<uint32_t>(std::strtoul(value, nullptr, 0));
  if (name == "--type")
    settings.type = type_of(value);
  else if (name == "--verb")
    settings.verb = value;
  else if (name == "--port")
    settings.port = static_cast<uint16_t>(number);
  else if (name == "--size")
    settings.size = number;
  else if (name == "--iterations")
    settings.iterations = number;
  else if (name == "--mtu")
    settings.endpoint.path_mtu = number;
  else if (name == "--pcap")
    settings.endpoint.pcap = value;
  else if (name == "--timeout-ms")
    settings.endpoint.timeout_ms = number;
  else
    die("no option \"" + name + "\"");
}

}  // namespace

int main(int argc, char** argv) {
  const Program* program = nullptr;
  for (const Program& candidate : kPrograms)
    if (argc > 2 && std::strcmp(argv[1], candidate.name) == 0) program = &candidate;
  if (program == nullptr) die("usage: rdma_peer PROGRAM LOCAL-ADDRESS [HOST] [--option value]...");
  Settings settings;
  settings.endpoint.address = argv[2];
  int at = 3;
  if (program->client) {
    if (argc < 4) die("whom to call?");
    settings.host = argv[at++];
  }
  for (; at + 1 < argc; at += 2) apply(settings, argv[at], argv[at + 1]);
  if (at != argc) die(std::string("no value for ") + argv[at]);
  if (settings.size == 0 || settings.size > 1 << 20) die("a size of 1 byte to 1 MiB");
  program->run(settings);
  return 0;
}
