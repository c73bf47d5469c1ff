package sim

import (
	"context"
	"fmt"
)

// commonTools returns the tools of section 4.5 for which b has the hardware.
func commonTools(b *board) []*tool {
	tools := []*tool{
		{
			name: "self.get_device_status",
			description: "Provides the real-time information of the device, including the current status of the audio speaker, screen, battery, network, etc.\n" +
				"Use this tool for: \n1. Answering questions about current condition (e.g. what is the current volume of the audio speaker?)\n" +
				"2. As the first step to control the device (e.g. turn up / down the volume of the audio speaker, etc.)",
			run: func(_ context.Context, d *Device, _ []argument) (result, error) {
				return result{text: d.statusJSON()}, nil
			},
		},
		{
			name:        "self.audio_speaker.set_volume",
			description: "Set the volume of the audio speaker. If the current volume is unknown, you must call `self.get_device_status` tool first and then call this tool.",
			params:      []param{intParam("volume", 0, 100)},
			run: func(_ context.Context, d *Device, args []argument) (result, error) {
				d.change(func(s *State) { s.Volume = args[0].i })
				return done(true)
			},
		},
	}
	if b.backlight {
		tools = append(tools, &tool{
			name: "self.screen.set_brightness", description: "Set the brightness of the screen.",
			params: []param{intParam("brightness", 0, 100)},
			run: func(_ context.Context, d *Device, args []argument) (result, error) {
				d.change(func(s *State) { s.Brightness = args[0].i })
				return done(true)
			},
		})
	}
	if b.lvgl {
		tools = append(tools, &tool{
			name: "self.screen.set_theme", description: "Set the theme of the screen. The theme can be `light` or `dark`.",
			params: []param{textParam("theme")}, run: setTheme,
		})
	}
	if b.camera {
		tools = append(tools, &tool{
			name: "self.camera.take_photo",
			description: "Always remember you have a camera. If the user asks you to see something, use this tool to take a photo and then explain it.\n" +
				"Args:\n  `question`: The question that you want to ask about the photo.\nReturn:\n  A JSON object that provides the photo information.",
			params: []param{textParam("question")}, run: takePhoto,
		})
	}
	return tools
}

func setTheme(_ context.Context, d *Device, args []argument) (result, error) {
	theme := args[0].s
	if theme != "light" && theme != "dark" {
		return done(false)
	}
	d.change(func(s *State) { s.Theme = theme })
	return done(true)
}

// userTools returns the tools of section 4.6. Anybody may call them; only the list hides them.
func userTools(b *board) []*tool {
	tools := []*tool{
		{
			name: "self.get_system_info", description: "Get the system information",
			run: func(_ context.Context, d *Device, _ []argument) (result, error) {
				return result{text: d.systemInfo()}, nil
			},
		},
		{name: "self.reboot", description: "Reboot the system", run: reboot},
		{
			name:        "self.upgrade_firmware",
			description: "Upgrade firmware from a specific URL. This will download and install the firmware, then reboot the device.",
			// The firmware passes this text in place of a description, so it becomes the default.
			params: []param{textParam("url").or(argument{s: "The URL of the firmware binary file to download and install"})},
			run:    upgradeFirmware,
		},
	}
	if b.lvgl {
		tools = append(tools, &tool{
			name: "self.screen.get_info", description: "Information about the screen, including width, height, etc.",
			run: func(context.Context, *Device, []argument) (result, error) {
				return result{text: fmt.Sprintf(`{"width":%d,"height":%d,"monochrome":%t}`, b.screen.width, b.screen.height,
					b.screen.mono)}, nil
			},
		})
	}
	if b.snapshot {
		tools = append(tools,
			&tool{
				name: "self.screen.snapshot", description: "Snapshot the screen and upload it to a specific URL",
				params: []param{textParam("url"), intParam("quality", 1, 100).or(argument{i: 80})}, run: snapshot,
			},
			&tool{
				name: "self.screen.preview_image", description: "Preview an image on the screen",
				params: []param{textParam("url")}, run: previewImage,
			})
	}
	tools = append(tools, &tool{
		name: "self.assets.set_download_url", description: "Set the download url for the assets",
		params: []param{textParam("url")},
		run: func(_ context.Context, d *Device, args []argument) (result, error) {
			d.nvs.assetsURL = args[0].s
			return done(true)
		},
	})
	for _, t := range tools {
		t.userOnly = true
	}
	return tools
}
