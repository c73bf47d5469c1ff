package espimage

import "bytes"

// others are the files that people upload by mistake, with their first bytes.
var others = []struct {
	begin string
	fault *Fault
}{
	{"\x7fELF", newFault(ReasonMagic, "elf", "found", "elf")},
	{"\x1f\x8b", newFault(ReasonMagic, "gzip", "found", "gzip")},
	{"PK\x03\x04", newFault(ReasonMagic, "zip", "found", "zip")},
	{"PK\x05\x06", newFault(ReasonMagic, "zip_empty", "found", "zip")},
	{"UF2\n", newFault(ReasonMagic, "uf2", "found", "uf2")},
	{"\xaa\x50", newFault(ReasonMagic, "partition_table", "found", "partition_table")},
	{"{", newFault(ReasonMagic, "json", "found", "json")},
}

// foreign returns a fault if the file is clearly of another sort, otherwise nil.
func foreign(start []byte, size int64) *Fault {
	for _, o := range others {
		if bytes.HasPrefix(start, []byte(o.begin)) {
			return o.fault
		}
	}
	if isHTML(start) {
		return newFault(ReasonMagic, "html", "found", "html")
	}
	if size >= minSize && len(bytes.Trim(start, "\xff")) == 0 {
		return newFault(ReasonMagic, "erased", "found", "erased")
	}
	return nil
}

func isHTML(start []byte) bool {
	s := bytes.ToLower(bytes.TrimLeft(bytes.TrimPrefix(start, []byte("\xef\xbb\xbf")), " \t\r\n"))
	for _, tag := range []string{"<!doctype", "<html", "<head", "<?xml", "<script", "<body"} {
		if bytes.HasPrefix(s, []byte(tag)) {
			return true
		}
	}
	return false
}
