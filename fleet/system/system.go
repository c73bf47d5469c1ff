// Package system describes a running fleetd: version, database, disks, certificates and
// the parts that it is built from. It holds no secret.
//
// These are types alone: cmd/fleetd/server fills them in, pages and REST show them.
package system

import "time"

// A SystemReport says how a fleetd runs, and what it is made of. It holds no
// secret.
type Report struct {
	Version   string
	Commit    string // "" if it is not known
	Modified  bool   // built from files that differ from the commit
	GoVersion string
	Platform  string // such as linux/amd64
	Node      string
	StartedAt time.Time
	Memory    int64 // bytes that the process has from the operating system

	Database     Database
	Disks        []Disk
	Images       StoredImages
	Certificates []Certificate
	Broker       Broker
	Parts        []Part // by name
}

// A DatabaseReport says how large the database is, and how it is used.
type Database struct {
	Server    string // version of PostgreSQL
	Embedded  bool   // fleetd runs it
	Bytes     int64
	Migration int64       // number of the latest
	Tables    []TableSize // the largest first

	InUse, Idle, Most int32 // connections of the pool
}

// A TableSize is a table with its indexes and partitions.
type TableSize struct {
	Name  string
	Bytes int64
	Rows  int64 // as PostgreSQL estimates them; -1 before it has
}

// A DiskReport is a file system that fleetd writes to.
type Disk struct {
	Name        string // of the directory
	Free, Total int64  // bytes
}

// StoredImages are the firmware images.
type StoredImages struct {
	Count int
	Bytes int64
}

// A CertificateReport is a certificate that fleetd shows to devices.
type Certificate struct {
	Name string // of its file
	Ends time.Time
}

// A BrokerReport counts what the broker does; messages since the start.
type Broker struct {
	Connections, Sockets, Onboarding          int64 // now
	MessagesIn, MessagesOut, Refused, Dropped int64 // dropped: the device did not read
}

// ComponentKind says what a part of the program is.
type ComponentKind string

// A part is a Go module, a font or a script.
const (
	PartModule ComponentKind = "module"
	PartFont   ComponentKind = "font"
	PartScript ComponentKind = "script"
)

// A SystemPart is something that others made, and that fleetd is built from.
type Part struct {
	Name, Version string
	Kind          ComponentKind
	Licence       string // SPDX identifier; "" if it is not known
}
