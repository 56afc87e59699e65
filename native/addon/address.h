// Numeric IPv4 and IPv6 addresses, with a zone where there is one (fe80::1%eth0). Never asks a
// resolver.
#pragma once
#include <sys/socket.h>

#include <cstdint>
#include <string>

#include "reactor/result.h"

namespace nvmeof::addon {

Result<sockaddr_storage> parse_address(const std::string& text, uint16_t port);
std::string format_address(const sockaddr_storage& address);

}  // namespace nvmeof::addon
