"""Tables and pictures, which know no network.

Comes in: plain values. Leaves: text, or a picture file. Read `tables.py` first.
"""

from lamina.base.lazy import loaded_when_used

if not loaded_when_used(__name__):
    from lamina.reports.curves import plot_curves as plot_curves
    from lamina.reports.figure import picture_format as picture_format
    from lamina.reports.grids import map_text as map_text
    from lamina.reports.grids import plot_confusion as plot_confusion
    from lamina.reports.grids import plot_images as plot_images
    from lamina.reports.grids import plot_map as plot_map
    from lamina.reports.plan_picture import Rectangle as Rectangle
    from lamina.reports.plan_picture import plot_plan as plot_plan
    from lamina.reports.tables import bytes_text as bytes_text
    from lamina.reports.tables import count_text as count_text
    from lamina.reports.tables import measured_text as measured_text
    from lamina.reports.tables import seconds_text as seconds_text
    from lamina.reports.tables import table_text as table_text
    from lamina.reports.tables import value_text as value_text
