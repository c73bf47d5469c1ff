// Package mcp speaks the Model Context Protocol, revision 2024-11-05, as a
// client of devices that run stock xiaozhi firmware.
//
// A [Session] is one conversation with one device. It owns no goroutine and no
// connection: bytes leave through a [Transport] and come back by
// [Session.Receive], called on whatever goroutine read them. The package knows
// neither MQTT nor WebSocket, and decides nothing about who may call what.
//
// What a device writes is not trusted. Every message is bounded in size and
// nesting before it is looked at; every string that leaves the package is valid
// UTF-8 without U+0000 or other control characters, so PostgreSQL stores it as
// it is (a result's text keeps its tabs and line breaks). It is still the
// device's text: show it as text, never as HTML.
//
// What a device reads is checked as well, because stock firmware answers a
// request that it dislikes with silence, and copies names and URLs unescaped
// into its error texts. [ErrInvalid] is the refusal to send such a request.
//
// Sizes are bytes. The package needs nothing outside the standard library.
//
// Each session has one lock, for the list of requests in flight; it is not held
// during a method of the transport.
package mcp
