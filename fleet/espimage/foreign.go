package espimage

import "bytes"

// others are the files that people hand in by mistake, by how they begin.
var others = []struct{ begin, found, message string }{
	{"\x7fELF", "elf", "this is an ELF file, the linker's output; upload the .bin that the build makes of it"},
	{"\x1f\x8b", "gzip", "this is a gzip archive; unpack it and upload the .bin inside"},
	{"PK\x03\x04", "zip", "this is a zip archive; unpack it and upload the .bin inside"},
	{"PK\x05\x06", "zip", "this is an empty zip archive; upload the .bin of the application"},
	{"UF2\n", "uf2", "this is a UF2 file, which devices take over USB only; upload the .bin of the application"},
	{"\xaa\x50", "partition_table", "this is a partition table; upload the .bin of the application"},
	{"{", "json", "this is a JSON text; upload the .bin of the application"},
}

// foreign names a file that is something else altogether, or returns nil.
func foreign(start []byte, size int64) *Fault {
	for _, o := range others {
		if bytes.HasPrefix(start, []byte(o.begin)) {
			return &Fault{Reason: ReasonMagic, Found: o.found, Message: o.message}
		}
	}
	if isHTML(start) {
		return &Fault{Reason: ReasonMagic, Found: "html",
			Message: "this is a web page, not firmware; the download link led to a page, such as a sign-in or a preview"}
	}
	if size >= minSize && len(bytes.Trim(start, "\xff")) == 0 {
		return &Fault{Reason: ReasonMagic, Found: "erased",
			Message: "the file begins with erased flash and has no partition table; upload the .bin of the application or the whole merged-binary.bin"}
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
