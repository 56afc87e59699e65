// What this peer can play: the other side of rdma-core's examples and of perftest.
#pragma once
#include <string>

#include "peer/endpoint.h"

namespace nvmeof::peer {

struct Settings {
  EndpointOptions endpoint;
  std::string host;  // of a client: whom it calls
  rdma::QpType type = rdma::QpType::Rc;
  std::string verb = "send";
  uint16_t port = 0;  // 0: the program's own
  uint32_t size = 4096;
  uint32_t iterations = 100;
};

void pingpong(const Settings& settings, bool server);  // ibv_{rc,uc,ud}_pingpong
void rping_server(const Settings& settings);
void rping_client(const Settings& settings);
void perftest_server(const Settings& settings);  // ib_{send,write,read,atomic}_bw calls us
void perftest_client(const Settings& settings);  // we call ib_{write,read,atomic}_bw

}  // namespace nvmeof::peer
