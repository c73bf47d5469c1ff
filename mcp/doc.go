// Package mcp speaks the Model Context Protocol, revision 2024-11-05, as a
// client of devices that run stock xiaozhi firmware.
//
// A [Session] is one conversation with one device. It owns no goroutine and no
// connection: bytes leave through a [Transport] and come back through
// [Session.Receive], which the goroutine that read them calls. The package
// knows neither MQTT nor WebSocket, and does not decide who may call which
// tool.
//
// Text from a device is not trusted. The package bounds the size and nesting of
// every message before it parses it. Every string that leaves the package is
// valid UTF-8 without U+0000 or other control characters, so PostgreSQL stores
// it unchanged (a result's text keeps its tabs and line breaks). It is still
// the device's text: show it as text, never as HTML.
//
// Text to a device is checked as well, because stock firmware drops a request
// that it cannot handle without an answer, and copies names and URLs unescaped
// into its error texts. [ErrInvalid] refuses to send such a request.
//
// Sizes are in bytes. The package needs only the standard library.
//
// Each session has one lock, for the list of requests in flight. The session
// does not hold it during a method of the transport.
package mcp
