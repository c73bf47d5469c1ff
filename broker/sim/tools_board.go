package sim

import (
	"context"
	"fmt"
	"strings"
)

func lampTools() []*tool {
	turn := func(on bool) func(context.Context, *Device, []argument) (result, error) {
		return func(_ context.Context, d *Device, _ []argument) (result, error) {
			d.change(func(s *State) { s.Lamp = on })
			return done(true)
		}
	}
	return []*tool{
		{
			name: "self.lamp.get_state", description: "Get the power state of the lamp",
			run: func(_ context.Context, d *Device, _ []argument) (result, error) {
				return result{text: fmt.Sprintf(`{"power": %t}`, d.State().Lamp)}, nil
			},
		},
		{name: "self.lamp.turn_on", description: "Turn on the lamp", run: turn(true)},
		{name: "self.lamp.turn_off", description: "Turn off the lamp", run: turn(false)},
	}
}

func lightTools() []*tool {
	return []*tool{
		{
			name: "self.light.get_power", description: "Get whether the light is on or off",
			run: func(_ context.Context, d *Device, _ []argument) (result, error) { return done(d.State().Lamp) },
		},
		{
			name: "self.light.set_rgb", description: "Set the RGB color of the light",
			params: []param{intParam("r", 0, 255), intParam("g", 0, 255), intParam("b", 0, 255)},
			run: func(_ context.Context, d *Device, args []argument) (result, error) {
				d.change(func(s *State) {
					s.RGB = [3]uint8{uint8(args[0].i), uint8(args[1].i), uint8(args[2].i)}
					s.Lamp = s.RGB != [3]uint8{}
				})
				return done(true)
			},
		},
	}
}

func ledStripTools() []*tool {
	return []*tool{
		{
			name: "self.led_strip.get_brightness", description: "Get the brightness of the led strip (0-8)",
			run: func(_ context.Context, d *Device, _ []argument) (result, error) {
				return result{text: fmt.Sprint(d.State().StripLevel)}, nil
			},
		},
		{
			name: "self.led_strip.set_brightness", description: "Set the brightness of the led strip (0-8)",
			params: []param{intParam("level", 0, 8)},
			run: func(_ context.Context, d *Device, args []argument) (result, error) {
				d.change(func(s *State) { s.StripLevel = args[0].i })
				return done(true)
			},
		},
		{
			name: "self.display.show_text", description: "Show a text on the display; `scroll` moves it through if it is long.",
			params: []param{textParam("text").or(argument{s: "hello"}), boolParam("scroll").or(argument{b: true})},
			run: func(_ context.Context, d *Device, args []argument) (result, error) {
				d.change(func(s *State) { s.Message = clip(args[0].s, maxMessage) })
				return done(true)
			},
		},
	}
}

func pressToTalkTools() []*tool {
	return []*tool{{
		name:        "self.set_press_to_talk",
		description: "Switch between press to talk mode (长按说话) and click to talk mode (单击说话).\nThe mode can be `press_to_talk` or `click_to_talk`.",
		params:      []param{textParam("mode")},
		run: func(_ context.Context, _ *Device, args []argument) (result, error) {
			if mode := args[0].s; mode != "press_to_talk" && mode != "click_to_talk" {
				return result{}, fmt.Errorf("Invalid mode: %s", mode) //lint:ignore ST1005 the firmware's text
			}
			return done(true)
		},
	}}
}

func captureTools() []*tool {
	return []*tool{{
		name: "self.camera.capture", description: "Take a picture and return it",
		params: []param{boolParam("flash").or(argument{b: false})},
		run: func(_ context.Context, d *Device, _ []argument) (result, error) {
			picture, err := d.photo("capture")
			return result{image: picture}, err
		},
	}}
}

func fileTools() []*tool {
	return []*tool{{
		name: "self.file.read", description: "Read the first bytes of the log file",
		params: []param{intParam("bytes", 1, 480_000)},
		run: func(_ context.Context, _ *Device, args []argument) (result, error) {
			return result{text: strings.Repeat("log ", args[0].i/4+1)[:args[0].i]}, nil
		},
	}}
}

func wifiTools() []*tool {
	return []*tool{{
		name:        "self.system.reconfigure_wifi",
		description: "End this conversation and enter WiFi configuration mode.\n**CAUTION** You must ask the user to confirm this action.",
		run:         reconfigureWiFi,
	}}
}
