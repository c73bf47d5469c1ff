// Package agent serves MCP clients that connect to the broker and speak MCP over MQTT: an agent is
// a program with an API token as its password. To an agent each device that it may see is an MCP
// server, and so is the fleet as a whole, with the tools that the address /mcp of HTTP offers.
//
// Nothing is routed from an agent to a device. fleetd is the server of every session, and a call
// passes the same gate as one by HTTP, with the rights that the token has at that time. Presence
// is what the registry says of devices in the token's scope, not what devices publish.
//
// In a cluster an edge holds the connection, and passes what it receives to the core that leads
// ([Remote], [Service.Serve]).
//
// The protocol's text: https://github.com/mqtt-ai/mcp-over-mqtt.
package agent
