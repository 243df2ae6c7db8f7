/* Addresses: as text, in the caller's formats, and as names of sockets. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "testprov.h"

/* Sets addr to the numeric IPv4 address node and the port service. NULL leaves a part 0. */
int tp_addr_parse(const char *node, const char *service, struct tp_addr *addr)
{
	struct in_addr ip;
	char *end;

	memset(addr, 0, sizeof *addr);
	if (node) {
		if (!strcmp(node, "localhost"))
			node = "127.0.0.1";
		if (inet_pton(AF_INET, node, &ip) != 1)
			return -FI_ENODATA;
		addr->ip = ntohl(ip.s_addr);
	}
	if (service) {
		unsigned long port = strtoul(service, &end, 10);

		if (!*service || *end || port > UINT16_MAX)
			return -FI_ENODATA;
		addr->port = (uint32_t) port;
	}
	return 0;
}

/* The raw format: struct tp_addr and 8 bytes that mark it. */
static const char mark[8] = "testprov";

/* Reads an address in the caller's format. It returns false if the address is not valid. */
bool tp_addr_get(uint32_t format, const void *raw, size_t len, struct tp_addr *addr)
{
	struct sockaddr_in sin;

	if (!raw || len < TP_ADDR_SIZE)
		return false;
	if (format == FI_SOCKADDR_IN) {
		memcpy(&sin, raw, sizeof sin);
		addr->ip = ntohl(sin.sin_addr.s_addr);
		addr->port = ntohs(sin.sin_port);
		return sin.sin_family == AF_INET;
	}
	memcpy(addr, raw, sizeof *addr);
	return !memcmp((const char *) raw + sizeof *addr, mark, sizeof mark);
}

void tp_addr_put(uint32_t format, const struct tp_addr *addr, void *raw)
{
	struct sockaddr_in sin = {.sin_family = AF_INET};

	_Static_assert(sizeof sin == TP_ADDR_SIZE, "both formats have the same size");
	_Static_assert(sizeof *addr + sizeof mark == TP_ADDR_SIZE, "both formats have the same size");
	if (format == FI_SOCKADDR_IN) {
		sin.sin_addr.s_addr = htonl(addr->ip);
		sin.sin_port = htons((uint16_t) addr->port);
		memcpy(raw, &sin, sizeof sin);
		return;
	}
	memcpy(raw, addr, sizeof *addr);
	memcpy((char *) raw + sizeof *addr, mark, sizeof mark);
}

/* Stores the address of the abstract Unix socket of addr in a struct sockaddr_un. It returns the
 * length of the address. The name has no file, so none is left when the process ends. */
int tp_socket_address(const struct tp_addr *addr, void *sockaddr)
{
	struct sockaddr_un *sun = sockaddr;
	int n;

	memset(sun, 0, sizeof *sun);
	sun->sun_family = AF_UNIX;
	n = snprintf(sun->sun_path + 1, sizeof sun->sun_path - 1, "weft-testprov-%08x-%u", addr->ip,
		     addr->port);
	return (int) offsetof(struct sockaddr_un, sun_path) + 1 + n;
}
