// Package fleet is the domain of the system: devices, the tools they offer, the
// record of calls made to them, and what a principal may see and do.
//
// It is the core that all subjects share. Each subject has a package below it, which the
// core does not import: making calls (fleet/call), operators, enrolment, firmware,
// campaigns and others.
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
// [Presences.Run] and [Targets.Run] are its goroutines. Every service has one lock for
// its maps, presence has 64.
package fleet
