package espimage

// chips maps the chip_id of an image to the name that devices report as
// chip_model_name.
var chips = map[uint16]string{
	0x0000: "esp32",
	0x0002: "esp32s2",
	0x0005: "esp32c3",
	0x0009: "esp32s3",
	0x000C: "esp32c2",
	0x000D: "esp32c6",
	0x0010: "esp32h2",
	0x0012: "esp32p4",
	0x0014: "esp32c61",
	0x0017: "esp32c5",
	0x0019: "esp32h21",
	0x001C: "esp32h4",
	0x0020: "esp32s31",
}

// ChipID returns the chip_id of the chip with the name that devices report.
func ChipID(name string) (id uint16, ok bool) {
	for id, n := range chips {
		if n == name {
			return id, true
		}
	}
	return 0, false
}
