// Package fleet is the domain of the system: devices, the tools they offer, the
// calls made to them, and the people and programs that make those calls.
//
// It is the core that all subjects share: enrolment, firmware, campaign and
// telemetry are packages below it, which it does not import.
//
// It imports neither the broker nor SQL nor HTTP; they import it. What fleet
// needs from the outside it states as small interfaces where they are used: a
// [Link] delivers calls to connected devices, the *Store interfaces keep what
// must outlive the process.
//
// Times are UTC. A duration becomes milliseconds only where it meets the wire.
// Text that came from a device is data: cleaned and bounded where it enters,
// shown as text and never as markup.
//
// [call.Service.Run], [call.FanOuts.Run], [Presences.Run], [picture.Service.Run] and [Targets.Run]
// are its goroutines; each call whose caller does not wait has one more, and each
// fan-out. Every service has one lock for its maps, presence has 64.
package fleet
