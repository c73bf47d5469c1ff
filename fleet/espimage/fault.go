package espimage

import "fmt"

// A Reason names a kind of fault, for programs. It does not change.
type Reason string

const (
	ReasonSize       Reason = "size"  // too short for any image
	ReasonMagic      Reason = "magic" // another sort of file; Found may name it
	ReasonDescriptor Reason = "no app descriptor at 32"
	ReasonChip       Reason = "chip_id"
	ReasonSegments   Reason = "segment bounds"
	ReasonTruncated  Reason = "truncated"
	ReasonChecksum   Reason = "checksum"
	ReasonSHA256     Reason = "sha256"
	ReasonPartitions Reason = "partition table" // names no application, is damaged, or no device can have it
	ReasonBootloader Reason = "bootloader"
	ReasonOTAData    Reason = "otadata"
	ReasonLayout     Reason = "layout" // the parts are good, but not together
)

// A Fault is what is wrong with a file that should be an image.
type Fault struct {
	Reason Reason
	// Found is the sort of file that it seems to be: "elf", "gzip", "zip",
	// "html", "uf2", "partition_table", "erased"; "" if nothing is known.
	Found   string
	Message string // one sentence, for a person
}

func (f *Fault) Error() string { return f.Message }

func faultf(reason Reason, format string, args ...any) *Fault {
	return &Fault{Reason: reason, Message: fmt.Sprintf(format, args...)}
}
