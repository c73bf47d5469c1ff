// Package sim runs virtual devices that behave on the wire like boards with the stock xiaozhi
// firmware: the boot poll, activation, MQTT without a SUBSCRIBE, MCP with its silences and
// oddities, upgrades with slots and rollback, and the reboots that a bad answer of the server
// causes.
//
// It is written from the protocol document and shares no code with the server, so a mistake on
// one side is not hidden by the same mistake on the other. It knows only the OTA URL of fleetd.
//
// A [Fleet] contains the devices of one process. The same seed gives the same devices again, with
// the same MAC addresses and Client-Ids. An idle device is one goroutine and one socket.
//
// A device that is given a WebSocket instead of MQTT connects when somebody talks to it; see
// socket.go.
//
// One profile is not a board but a program that simulates one. It is written from the behaviour
// of py-xiaozhi; see software.go.
//
// Section numbers in comments are those of the protocol document.
package sim
