// Package fleet is the domain of the system: devices, the tools they offer, the
// record of calls made to them, and what a principal may see and do.
//
// It is the core that all other packages of the domain share. Each subject has a package
// below it, which the core does not import: making calls (fleet/call), operators, enrolment,
// firmware, campaigns and others.
//
// It imports neither the broker nor SQL nor HTTP; they import it. It declares its
// dependencies as small interfaces where it uses them: a [Link] delivers calls to connected
// devices, and the *Store interfaces store what must outlive the process.
//
// Times are UTC. Durations become milliseconds only at the wire. Text from a device is data:
// it is cleaned and bounded on entry, and shown as text, never as markup.
//
// [Presences.Run] and [Targets.Run] are its goroutines. Each service has one lock for its
// maps; [Presences] has 64.
package fleet
