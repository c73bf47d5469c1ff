package sim

// catalogue builds every board once. The boards differ in chip, flash layout, network, screen and
// tools.
func catalogue() []*board {
	all := []*board{
		{
			name: "bread-compact-wifi", chip: esp32s3, flash: 16 << 20, heap: "8213412", partitions: layout16MB,
			screen: screen{width: 320, height: 240}, lvgl: true, snapshot: true, own: lampTools(),
		},
		{
			name: "esp-box-3", chip: esp32s3, flash: 16 << 20, heap: "7741080", partitions: layout16MB,
			screen: screen{width: 320, height: 240}, lvgl: true, snapshot: true, backlight: true, camera: true,
			serial: true,
		},
		{
			name: "xmini-c3", chip: esp32c3, flash: 16 << 20, heap: "118244", partitions: layout16MB,
			screen: screen{width: 128, height: 64, mono: true}, battery: true, own: pressToTalkTools(),
		},
		{
			name: "atoms3-echo-base", chip: esp32s3, flash: 8 << 20, heap: "151872", partitions: layout8MB,
			screen: screen{width: 128, height: 128}, lvgl: true, snapshot: true, backlight: true, own: lightTools(),
		},
		{
			name: "bread-compact-ml307", chip: esp32s3, flash: 16 << 20, heap: "8011560", partitions: layout16MB,
			screen: screen{width: 240, height: 240}, lvgl: true, snapshot: true, network: cellular,
			battery: true, own: append(lampTools(), ledStripTools()...),
		},
		{
			name: "bread-compact-esp32", chip: esp32, flash: 4 << 20, heap: "96120", partitions: layout4MB,
			screen: screen{width: 128, height: 64, mono: true}, own: lampTools(),
		},
		{
			// A home-made board whose tools answer with a picture, which no stock tool does
			// (4.4), and with text of any requested length.
			name: "custom-cam-s3", chip: esp32s3, flash: 16 << 20, heap: "7913004", partitions: layout16MB,
			screen: screen{width: 240, height: 240}, lvgl: true, snapshot: true, backlight: true, camera: true,
			battery: true, own: append(captureTools(), fileTools()...),
		},
		{
			name: "lichuang-dev", chip: esp32s3, flash: 16 << 20, heap: "8104220", partitions: layout16MB,
			screen: screen{width: 320, height: 240}, lvgl: true, snapshot: true, backlight: true, camera: true,
			own: wifiTools(),
		},
		{name: "py-desktop", chip: esp32, partitions: layout4MB, software: true}, // its poll does not mention these
	}
	for _, b := range all {
		b.equip()
	}
	return all
}

var layout16MB = []partition{
	{"nvs", 1, 2, 36864, 16384},
	{"otadata", 1, 0, 53248, 8192},
	{"phy_init", 1, 1, 61440, 4096},
	{"ota_0", 0, 16, 131072, 4128768},
	{"ota_1", 0, 17, 4259840, 4128768},
	{"assets", 1, 130, 8388608, 8388608},
}

var layout8MB = []partition{
	{"nvs", 1, 2, 36864, 16384},
	{"otadata", 1, 0, 53248, 8192},
	{"phy_init", 1, 1, 61440, 4096},
	{"ota_0", 0, 16, 131072, 3080192},
	{"ota_1", 0, 17, 3211264, 3080192},
	{"assets", 1, 130, 6291456, 2097152},
}

// layout4MB has one app and no slot for upgrades.
var layout4MB = []partition{
	{"nvs", 1, 2, 36864, 16384},
	{"phy_init", 1, 1, 53248, 4096},
	{"factory", 0, 0, 65536, 3080192},
	{"model", 1, 130, 3145728, 983040},
}
