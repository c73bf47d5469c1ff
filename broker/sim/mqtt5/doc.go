// Package mqtt5 runs virtual devices that speak MCP over MQTT 5
// (https://github.com/mqtt-ai/mcp-over-mqtt): a device is an MCP server and an MQTT client, and
// announces itself with a retained presence message.
//
// A device either conforms to the protocol, or deviates from it like one with the ESP-IDF SDK
// 0.0.1 (2025): see [Options.SDK] and sdk.go.
//
// The package is written from the protocol and from the source of that SDK, and shares no code
// with the server, so a mistake on one side is not hidden by the same mistake on the other. It
// knows the broker's address and the credentials that [Options.Credentials] returns, and stores
// neither. An idle device is one goroutine and one socket.
package mqtt5
