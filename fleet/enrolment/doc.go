// Package enrolment decides which units may join: it reads boot polls, asks for
// a code, an operator, a rule or the proof of a serial number, hands out
// credentials, notices two units with one Device-Id, and rotates the keys that
// credentials are made from.
//
// It knows no HTTP and no MQTT: a [BootPoll] comes in, a [PollAnswer] goes out.
// It does not know what is installed on a device or planned for it. All
// admissions are held in memory under one lock, so that a boot poll is answered
// while the database is away; polls are written behind. [Service.Run],
// [Serials.Run] and [SigningKeys.Run] are its goroutines.
package enrolment
