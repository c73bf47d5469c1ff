// Package endpoint describes endpoints: programs behind NAT that connect to fleetd by WebSocket,
// are MCP servers, and are devices of the fleet with the id endpoint.NAME.
//
// An endpoint has two tokens, which are shown once and stored as hashes. The provider's token
// lets one program connect as the endpoint. The consumer's token lets an MCP client, such as a
// voice server, list and call the tools of this endpoint and of no other device; see
// [Endpoint.Consumer]. Neither token can be used in place of the other.
//
// The package opens no socket and speaks no MCP: a [Runner] does. [Service.Run] follows the
// database on one goroutine.
package endpoint
