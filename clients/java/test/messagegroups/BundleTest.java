package messagegroups;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Bundles are read as the page says that is named on the command line. */
final class BundleTest {
    private BundleTest() {}

    public static void main(String[] arguments) throws IOException {
        Matcher page = Pattern.compile("```hex\n([^`]*)```").matcher(Files.readString(Path.of(arguments[0])));
        check(page.find(), "the page has no example");
        byte[] example = HexFormat.of().parseHex(page.group(1).replace("\n", ""));
        List<String> copies = Bundle.split(example).stream().map(BundleTest::text).toList();
        check(copies.equals(List.of("100 a 7 1 1 paid", "101 a 7 2 1 sent")), copies.toString());
        for (int length = 1; length < example.length; length++) {
            boolean isOne = length == example.length / 2; // both are equally long
            check(isOne || isRefused(Arrays.copyOf(example, length)), "the first " + length + " bytes of the example");
        }
        check(isRefused(new byte[] {0, 0, 0, 2, 0, 0, 0, 0, 0, 0}), "a copy without a number");
        byte[] wrong = example.clone();
        wrong[4 + 2 + 4 + 1 + "x-group-id".length()] = '?';
        check(isRefused(wrong), "a header of an unknown type");
    }

    private static String text(Message copy) {
        return String.join(" ", String.valueOf(copy.seq()), copy.groupText(), String.valueOf(copy.epoch),
            String.valueOf(copy.groupSeq), String.valueOf(copy.attempt), new String(copy.body));
    }

    private static boolean isRefused(byte[] bundle) {
        try {
            Bundle.split(bundle);
            return false;
        } catch (IOException expected) {
            return true;
        }
    }

    private static void check(boolean holds, String what) {
        if (!holds) throw new AssertionError(what);
    }
}
