// Package feed is an MQTT broker for operators' programs: a client with an API token as its password
// subscribes to the entries of the sealed record (package record), and Home Assistant to the devices
// and their simple tools.
//
// Clients read. They see what their token sees now: of entries and devices, those of its scope. The
// one thing that a client may publish is a command of Home Assistant, which becomes a call through the
// same gate as a call by REST. Messages of one client never reach another.
//
// mochi parses packets and keeps subscriptions. Each client has one writer here, so its messages keep
// their order, and a client that does not keep up loses its connection and never a single message.
// There are no sessions, no retained messages and no wills: what a client missed is in the record.
package feed
