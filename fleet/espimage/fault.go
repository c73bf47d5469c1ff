package espimage

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// A Reason is a stable code for a kind of fault.
type Reason string

const (
	ReasonSize       Reason = "size"  // too short for any image
	ReasonMagic      Reason = "magic" // another sort of file, which the parameter found may name
	ReasonDescriptor Reason = "no app descriptor at 32"
	ReasonChip       Reason = "chip_id"
	ReasonSegments   Reason = "segment bounds"
	ReasonTruncated  Reason = "truncated"
	ReasonChecksum   Reason = "checksum"
	ReasonSHA256     Reason = "sha256"
	ReasonPartitions Reason = "partition table" // has no application, is damaged, or fits no device
	ReasonBootloader Reason = "bootloader"
	ReasonOTAData    Reason = "otadata"
	ReasonLayout     Reason = "layout" // the parts are valid, but do not fit together
	ReasonManifest   Reason = "manifest"
)

// A Fault is what is wrong with a file that should be an image or a manifest. It contains no
// text; text is made from its code where it is shown.
type Fault struct {
	Reason Reason
	Case   string         // the fault within its kind, in snake_case
	Params map[string]any // string, int64, or a *Fault that explains further; foreign text is unchanged
}

// newFault returns a fault. params alternates names and values. A name that ends in _hex
// means a number written in hexadecimal.
func newFault(reason Reason, which string, params ...any) *Fault {
	f := &Fault{Reason: reason, Case: which}
	for i := 0; i+1 < len(params); i += 2 {
		if f.Params == nil {
			f.Params = make(map[string]any, len(params)/2)
		}
		value := params[i+1]
		switch v := value.(type) {
		case int:
			value = int64(v)
		case byte:
			value = int64(v)
		case uint16:
			value = int64(v)
		case uint32:
			value = int64(v)
		}
		f.Params[params[i].(string)] = value
	}
	return f
}

// Found returns the apparent sort of the file: "elf", "gzip", "zip", "html", "json", "uf2",
// "partition_table", "erased"; "" if unknown.
func (f *Fault) Found() string {
	found, _ := f.Params["found"].(string)
	return found
}

// Error returns the code and the parameters, for logs.
func (f *Fault) Error() string {
	var b strings.Builder
	b.WriteString(cmp.Or(string(f.Reason), "fault") + ": " + f.Case)
	for _, name := range slices.Sorted(maps.Keys(f.Params)) {
		switch v := f.Params[name].(type) {
		case string:
			fmt.Fprintf(&b, " %s=%q", name, v)
		case int64:
			if strings.HasSuffix(name, "_hex") {
				fmt.Fprintf(&b, " %s=%#x", name, v)
			} else {
				fmt.Fprintf(&b, " %s=%d", name, v)
			}
		default:
			fmt.Fprintf(&b, " %s=(%v)", name, v)
		}
	}
	return b.String()
}
