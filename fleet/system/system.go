// Package system describes a running fleetd: version, database, disks, certificates and the
// components that it is built from. It holds no secret.
//
// It contains only types: cmd/fleetd/server fills them in; pages and REST show them.
package system

import "time"

// A Report describes how a fleetd runs and what it is built from. It holds no secret.
type Report struct {
	Version   string
	Commit    string // "" if unknown
	Modified  bool   // built from files that differ from the commit
	GoVersion string
	Platform  string // such as linux/amd64
	Node      string
	StartedAt time.Time
	Memory    int64 // bytes that the process has obtained from the operating system

	Database     Database
	Disks        []Disk
	Images       StoredImages
	Certificates []Certificate
	Broker       Broker
	Parts        []Part // by name
}

// A Database describes the size and use of the database.
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
	Rows  int64 // PostgreSQL's estimate; -1 if not estimated yet
}

// A Disk is a file system that fleetd writes to.
type Disk struct {
	Name        string // name of the directory
	Free, Total int64  // bytes
}

// StoredImages describes the stored firmware images.
type StoredImages struct {
	Count int
	Bytes int64
}

// A Certificate is a certificate that fleetd presents to devices.
type Certificate struct {
	Name string // name of its file
	Ends time.Time
}

// A Broker has the broker's counters. Messages are counted since the start.
type Broker struct {
	Connections, Sockets, Onboarding          int64 // current
	MessagesIn, MessagesOut, Refused, Dropped int64 // dropped: the device did not read
}

// ComponentKind is the kind of a component.
type ComponentKind string

// Kinds of components.
const (
	PartModule ComponentKind = "module"
	PartFont   ComponentKind = "font"
	PartScript ComponentKind = "script"
)

// A Part is a third-party component that fleetd is built from.
type Part struct {
	Name, Version string
	Kind          ComponentKind
	Licence       string // SPDX identifier; "" if unknown
}
