// Package sim runs virtual devices that behave on the wire as boards with the
// stock xiaozhi firmware do: the boot poll, activation, MQTT without a
// SUBSCRIBE, MCP with its silences and oddities, upgrades with slots and
// rollback, and the reboots that a bad answer of the server causes.
//
// It is written from the protocol document and shares no code with the server:
// a mistake made on one side must not hide itself on the other. It knows
// nothing of fleetd but the OTA URL.
//
// A [Fleet] holds the devices of one process. The same seed gives the same
// devices again, with the same MAC addresses and Client-Ids. An idle device is
// one goroutine and one socket.
//
// A device that is given a WebSocket in place of MQTT connects when somebody talks
// to it; see socket.go.
//
// One profile is no board but a program that plays one, and is written from
// what py-xiaozhi does; see software.go.
//
// Section numbers in comments are those of the protocol document.
package sim
