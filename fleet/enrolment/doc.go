// Package enrolment decides which units may join. It handles boot polls, requires a code, an
// operator, a rule or the proof of a serial number, issues credentials, detects two units with
// one Device-Id, and rotates the keys from which credentials are derived.
//
// The package contains neither HTTP nor MQTT: its input is a [BootPoll] and its output a [PollAnswer].
// It has no knowledge of the firmware installed on a device or planned for it. All admissions are held
// in memory under one lock, so boot polls are answered while the database is unavailable; polls are
// written behind. [Service.Run], [Serials.Run] and [SigningKeys.Run] are its goroutines.
package enrolment
